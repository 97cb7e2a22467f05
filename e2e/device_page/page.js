// Starts the checks in a worker and posts what they report, in order.

let sending = Promise.resolve();
window.reports = [];
const report = (message) => {
    window.reports.push(message);
    sending = sending.then(() => fetch("/report", { method: "POST", body: JSON.stringify(message) }));
};
const worker = new Worker(`worker.js${location.search}`, { type: "module" });
worker.onmessage = (event) => report(event.data);
worker.onerror = (event) => report({ ev: "error", done: true, message: event.message });
