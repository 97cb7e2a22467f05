// Boots Python as the real worker does and runs checks.py on the page's GPU.

import { startPython } from "../../python.js";
import * as replay from "../../replay.js";

globalThis.jirdShell = { replay };
try {
    const pyodide = await startPython();
    const source = await (await fetch("checks.py")).text();
    await pyodide.runPythonAsync(source, { filename: "checks.py" });
    self.postMessage({ ev: "result", done: true });
} catch (error) {
    self.postMessage({ ev: "error", done: true, message: String(error) });
}
