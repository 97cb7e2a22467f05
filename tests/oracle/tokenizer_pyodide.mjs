// Runs tests/text_job.py in Pyodide under node: node tokenizer_pyodide.mjs DIST REPO JOB.json RESULT.json
// The npm modules are put on globalThis as web/worker.js does.
import { pathToFileURL } from "node:url";

const [dist, repo, job, result] = process.argv.slice(2);
const module = (path) => import(pathToFileURL(`${dist}/${path}`).href);
globalThis.jirdTokenizers = await module("npm/tokenizers.js");
globalThis.jirdJinja = await module("npm/jinja.js");
const { loadPyodide } = await module("pyodide/pyodide.mjs");
const pyodide = await loadPyodide({ indexURL: `${dist}/pyodide/` });
pyodide.mountNodeFS("/repo", repo);
pyodide.mountNodeFS("/job", job.slice(0, job.lastIndexOf("/")));
pyodide.globals.set("job_file", `/job/${job.slice(job.lastIndexOf("/") + 1)}`);
pyodide.globals.set("result_file", `/job/${result.slice(result.lastIndexOf("/") + 1)}`);
pyodide.runPython(`
import json, sys
sys.dont_write_bytecode = True
sys.path[:0] = ["/repo/py", "/repo/tests"]
import text_job
with open(job_file, encoding="utf-8") as file:
    job = json.load(file)
with open(result_file, "w", encoding="utf-8") as file:
    json.dump(text_job.run(job), file)
`);
process.exit(0);
