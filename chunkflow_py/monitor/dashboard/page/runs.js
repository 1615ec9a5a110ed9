"use strict";
// The table of all runs below a prefix. The functions of common.js insert all data as text.

const OFTEN_MS = 5000, AGAIN_MS = 10000;
let timer = 0, isAsking = false;

async function poll() {
  clearTimeout(timer);
  if (document.hidden || isAsking) return;
  isAsking = true;
  let wait = OFTEN_MS;
  try {
    render(await (await ask("runs.json")).json());
    $("trouble").hidden = true;
  } catch (error) {
    $("trouble").hidden = false;
    $("trouble").textContent = `${error.message || error}; trying again in ${AGAIN_MS / 1000} s`;
    wait = AGAIN_MS;
  } finally {
    isAsking = false;
    timer = setTimeout(poll, wait);
  }
}

const sum = (values) => values.reduce((a, b) => a + b, 0);

// The figures of one run: those of its steps together.
function figures(run) {
  const tasks = sum(run.stages.map((each) => each.tasks));
  const done = sum(run.stages.map((each) => each.done)), skipped = sum(run.stages.map((each) => each.skipped));
  const failed = sum(run.stages.map((each) => each.failed));
  const workers = Math.max(0, run.workers.started - sum(Object.values(run.workers.stopped)));
  const state = run.paused && run.state === "unfinished" ? "paused" : run.state;
  const counts = { done, skipped, failed, running: run.queue ? Math.min(run.queue.leased, tasks) : 0, retry: 0 };
  return { run, tasks, ended: done + skipped, failed, workers, state, counts };
}

function money({ spent, budget }) {
  if (spent === null && budget === null) return "–";
  return budget === null ? dollars(spent) : `${dollars(spent)} of ${dollars(budget)}`;
}

function render(said) {
  const runs = said.runs.map(figures);
  const open = runs.filter((each) => each.run.state === "unfinished");
  document.title = `${open.length} of ${runs.length} runs unfinished, ${said.prefix}`;
  $("address").textContent = said.prefix;
  $("state").textContent = said.state;
  $("state").className = `pill ${pillOf(said.state)}`;
  $("fresh").textContent = `as of ${clock(said.now)}`;
  fill("tiles", runs, () => [
    tile(`${whole(open.length)} of ${whole(runs.length)}`, "runs unfinished"),
    tile(whole(sum(open.map((each) => each.tasks - each.ended - each.failed))), "tasks left"),
    tile(whole(sum(runs.map((each) => each.failed))), "tasks failed, given up"),
    tile(whole(sum(open.map((each) => each.workers))), "workers at work or lost"),
    tile(dollars(sum(runs.map((each) => each.run.spent || 0))), "spent, reported by workers")]);
  fill("runs", runs, () => runs.length ? table(
    [["run"], ["priority", 1], ["state"], ["tasks done", 1], [""], ["failed", 1], ["waiting", 1], ["in flight", 1], ["workers", 1], ["cost", 1]],
    runs.map(({ run, tasks, ended, failed, workers, state, counts }) => [
      make("a", { href: `runs/${encodeURIComponent(run.name)}/` }, run.name),
      whole(run.priority),
      make("span", { className: `pill ${pillOf(state)}` }, state),
      `${whole(ended)} of ${whole(tasks)}`,
      make("div", { className: "share" }, bar(counts, tasks)),
      whole(failed),
      run.queue ? whole(run.queue.waiting) : "–",
      run.queue ? whole(run.queue.leased) : "–",
      whole(workers),
      money(run)])) : make("p", { className: "note" }, "There is no run below this prefix."));
}

document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
poll();
