// Boots Pyodide, installs numpy and jird's wheel, imports the npm modules, and says what it found.
async function load() {
  const { loadPyodide } = await import("/pyodide/pyodide.mjs");
  const pyodide = await loadPyodide();
  await pyodide.loadPackage(["numpy", "micropip"]);
  const manifest = await (await fetch("/manifest.json")).json();
  const micropip = pyodide.pyimport("micropip");
  await micropip.install(new URL("/" + manifest.wheel, location.href).href);
  const { Tokenizer } = await import("/npm/tokenizers.js");
  const { Template } = await import("/npm/jinja.js");
  const found = pyodide.runPython(`
import json, jird, numpy
from importlib import resources
shaders = sum(1 for path in (resources.files("jird") / "shaders").rglob("*.wgsl"))
json.dumps({"jird": jird.__version__, "numpy": numpy.__version__, "sum": int(numpy.arange(5).sum()), "shaders": shaders})
`);
  let evalError = "";
  try {
    new Function("return 1")();
  } catch (error) {
    evalError = error.name;
  }
  const text = new Template("{% for m in messages %}<{{ m.role }}>{% endfor %}").render({ messages: [{ role: "user" }] });
  return { ev: "result", ...JSON.parse(found), text, tokenizer: typeof Tokenizer, evalError, done: true };
}

load().then(postMessage, (error) => postMessage({ ev: "error", code: "load", message: String(error), hint: "", done: true }));
