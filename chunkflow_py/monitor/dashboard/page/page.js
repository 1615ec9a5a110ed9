"use strict";
// The page of one run. It requests JSON regularly, and pauses while it is hidden.

const OFTEN_MS = 5000, SELDOM_MS = 30000, SOON_MS = 200, AGAIN_MS = 10000;
const WORDS = {
  done: "done", skipped: "skipped", failed: "failed, given up", retry: "failed, to be tried again",
  running: "running", missing: "missing: not ended, and not known to be running", none: "no task",
};
const open = new Set(); // groups of errors that are unfolded
let stage = "", mapStage = null, mapVersion = 0, map = null, latest = null, timer = 0, isAsking = false;

async function poll() {
  clearTimeout(timer);
  if (document.hidden || isAsking) return;
  isAsking = true;
  let wait = AGAIN_MS;
  try {
    latest = await (await ask("status.json", { stage })).json();
    await loadMap();
    render(latest);
    $("trouble").hidden = true;
    wait = latest.history.pages ? SOON_MS : latest.state === "unfinished" ? OFTEN_MS : SELDOM_MS;
  } catch (error) {
    $("trouble").hidden = false;
    $("trouble").textContent = `${error.message || error}; trying again in ${AGAIN_MS / 1000} s`;
  } finally {
    isAsking = false;
    const isAnother = stage && latest && latest.stage !== stage;
    timer = setTimeout(poll, isAnother ? 0 : wait);
  }
}

async function loadMap() {
  const name = latest.stage;
  if (mapStage !== name) {
    const layout = await (await ask("layout.json", { stage: name })).json();
    const cells = layout.cells ? new Uint32Array(await (await ask("cells.bin", { stage: name })).arrayBuffer()) : null;
    map = new TaskMap(layout, cells);
    mapStage = name;
    mapVersion = 0;
  }
  if (mapVersion === latest.version) return;
  const answer = await ask("map.bin", { stage: name, since: mapVersion });
  map.take(await answer.arrayBuffer(), answer.headers.get("X-Whole") === "1");
  if (!mapVersion) {
    map.start();
    buildMap();
  }
  mapVersion = Number(answer.headers.get("X-Version"));
  drawMap();
}

// --- the map -------------------------------------------------------------------------------------

function buildMap() {
  const inOrder = map.layout.starts[0].length === 0;
  map.whole = $("whole").checked;
  $("time-row").hidden = !map.layout.times;
  $("t").max = map.layout.count[0] - 1;
  $("t").value = map.time;
  $("time-row").querySelector("output").textContent = map.time;
  const names = inOrder ? ["XY"] : Object.keys(PLANES);
  $("planes").replaceChildren(...names.map((name) => {
    const axis = PLANES[name][2];
    const slider = make("input", { type: "range", min: 0, max: map.count[axis] - 1, className: "layer" });
    slider.value = map.at[axis];
    slider.disabled = map.count[axis] === 1;
    const place = make("output");
    const tell = () => {
      const start = map.layout.starts[axis][map.at[axis]];
      place.textContent = inOrder ? "" : `${AXES[axis]} from ${start} (${map.at[axis] + 1} of ${map.count[axis]})`;
    };
    slider.addEventListener("input", () => { map.at[axis] = Number(slider.value); tell(); drawMap(); });
    tell();
    const canvas = make("canvas", { id: `plane-${name}` });
    canvas.addEventListener("mousemove", (event) => hover(event, canvas, name));
    canvas.addEventListener("mouseleave", () => { $("tip").hidden = true; hovered = -1; });
    canvas.addEventListener("click", (event) => {
      const found = map.find(canvas, name, event.offsetX, event.offsetY);
      if (found) showTask(found.number);
    });
    const title = make("b", {}, inOrder ? "tasks in the order of the list" : name);
    return make("div", { className: "plane" }, make("label", {}, title, inOrder ? null : slider, place), canvas);
  }));
}

function drawMap() {
  if (!map) return;
  for (const canvas of $("planes").querySelectorAll("canvas")) {
    const room = Math.max(120, canvas.parentElement.clientWidth - 2);
    map.draw(canvas, canvas.id.slice("plane-".length), room);
    canvas.parentElement.querySelector(".layer")?.toggleAttribute("hidden", map.whole);
    canvas.parentElement.querySelector("output").hidden = map.whole;
  }
}

let hovered = -1;
async function hover(event, canvas, name) {
  const found = map.find(canvas, name, event.offsetX, event.offsetY);
  const tip = $("tip");
  tip.hidden = !found;
  if (!found) { hovered = -1; return; }
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - 300)}px`;
  tip.style.top = `${event.clientY + 14}px`;
  if (found.number === hovered) return;
  hovered = found.number;
  tip.textContent = `task ${found.number}\n${WORDS[found.state]}`;
  await new Promise((resolve) => setTimeout(resolve, 60)); // a pointer that only passes by causes no request
  if (hovered !== found.number) return;
  const said = await (await ask("brief.json", { stage: mapStage, number: found.number })).json();
  if (hovered !== found.number) return;
  const lines = [said.box, `task ${said.number}: ${WORDS[said.state]}`];
  lines.push(`attempts: ${said.attempts}, failed: ${said.failed_attempts}`);
  if (said.worker !== null) lines.push(`by ${said.worker}`, `${clock(said.finished)}, took ${span(said.seconds)}`);
  tip.textContent = lines.join("\n");
}

// --- one task ------------------------------------------------------------------------------------

function pairs(rows) {
  return make("dl", {}, ...rows.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

async function showTask(number) {
  const box = $("task").lastElementChild;
  box.replaceChildren(make("p", {}, `task ${number} …`));
  if (!$("task").open) $("task").showModal();
  let said;
  try {
    said = await (await ask("task.json", { stage: mapStage, number })).json();
  } catch (error) {
    box.replaceChildren(make("p", {}, error.message));
    return;
  }
  const parts = [make("h2", {}, `${said.box}: ${WORDS[said.state]}`),
    pairs([["task", said.number], ["attempts", `${said.attempts}, failed: ${said.failed_attempts}`]])];
  for (const record of said.records) {
    const sizes = record.written.map((each) => each.size || 0).reduce((a, b) => a + b, 0);
    const times = Object.entries(record.seconds).map(([name, s]) => `${name} ${few(s)} s`).join(", ");
    parts.push(make("h3", {}, `Record: ${record.state}`), pairs([
      ["worker", record.worker], ["ended", clock(record.finished)], ["reason", record.reason], ["took", times],
      ["written", `${record.written.length} objects, ${bytes(sizes)}`], ["attempt", record.attempt],
      ["profile", record.profile], ["spec", record.spec], ["missing blocks", record.missing_blocks || null]]));
    if (record.written.length) {
      parts.push(make("details", {}, make("summary", {}, "written objects"),
        make("pre", {}, record.written.map((each) => `${each.url}  ${each.size ?? "-"}  ${each.checksum ?? ""}`).join("\n"))));
    }
  }
  for (const each of said.begun) parts.push(make("h3", {}, `Attempt ${each.attempt}: begun, no end recorded`));
  for (const failure of said.failures) parts.push(make("h3", {}, `Failed: ${failure.kind}`), ...failed(failure));
  box.replaceChildren(...parts);
}

function failed(failure) {
  return [pairs([["reason", failure.reason], ["worker", failure.worker], ["when", clock(failure.when)],
    ["attempt", failure.attempt]]), failure.traceback ? make("pre", {}, failure.traceback) : null].filter(Boolean);
}

const taskButton = (number, text) => make("button", { className: "task", onclick: () => showTask(number) }, text);

// --- numbers -------------------------------------------------------------------------------------

function render(said) {
  const mine = said.stages.find((each) => each.name === said.stage);
  const counts = mine.counts;
  document.title = `${mine.tasks ? Math.floor((100 * (mine.tasks - mine.left)) / mine.tasks) : 100} % ${said.address.split("#")[0]}`;
  $("address").textContent = said.address;
  $("state").textContent = said.state;
  $("state").className = `pill ${pillOf(said.state)}`;
  $("layers").hidden = !said.has_viewer;
  $("fresh").textContent = `as of ${clock(said.now)}`;
  fill("stage", [said.stages.map((each) => each.name), said.stage], ([names, now]) =>
    names.map((name) => make("option", { value: name, selected: name === now }, name)));
  fill("legend", counts, () => Object.keys(WORDS).filter((name) => name !== "none" || counts.none).map((name) =>
    make("span", {}, make("i", { style: { background: `var(--${name})` } }), `${WORDS[name]} `,
      make("b", { id: `count-${name}` }, whole(counts[name])))));
  $("running").textContent = `Running: ${said.running}.`
    + (said.queue ? ` The queue has ${whole(said.queue.waiting)} messages waiting and ${whole(said.queue.leased)} in flight`
      + `${said.queue.dead === null ? "" : `, ${whole(said.queue.dead)} dead letters`}.` : "");
  const end = mine.expected_s === null ? "–" : clock(said.now + mine.expected_s).slice(5, 16);
  fill("tiles", [mine, said.workers.active, said.workers.count, said.queue, end], () => [
    tile(`${whole(counts.done)} of ${whole(mine.tasks)}`, "tasks done", bar(counts, mine.tasks)),
    tile(said.queue ? whole(said.queue.leased) : whole(counts.running), said.queue ? "in flight, as reported by the queue" : "running, as marked by workers"),
    tile(whole(mine.left), "tasks left"),
    tile(whole(counts.failed), "tasks failed, given up"),
    tile(whole(mine.failed_attempts), "failed attempts"),
    tile(mine.tasks_per_s ? few(3600 * mine.tasks_per_s) : "–", "tasks per hour, recently"),
    tile(end, mine.left ? `expected end, in ${span(mine.expected_s)}` : "no task is left"),
    tile(`${whole(said.workers.active)} of ${whole(said.workers.count)}`, "workers active recently"),
    tile(bytes(mine.stored_bytes), "stored")]);
  renderSpeed(said);
  renderCost(said);
  fill("errors", said.errors.groups, renderErrors);
  $("given-up-title").hidden = !said.errors.failed_tasks.length;
  fill("given-up", said.errors.failed_tasks, (tasks) => tasks.length ? table([["task"], ["reason"]],
    tasks.map((each) => [taskButton(each.number, each.number), each.reason])) : []);
  const notRead = said.history.ended - said.history.known;
  const partly = notRead > 0 ? ` ${whole(notRead)} of ${whole(said.history.ended)} records are not read yet.` : "";
  fill("workers", [said.workers.rows, partly], ([rows]) => [
    table([["worker"], ["tasks", 1], ["failed attempts", 1], ["last record"], ["tasks per hour", 1], ["tasks in the last 10 min", 1], ["mean time per task", 1]],
      rows.map((each) => [each.name, whole(each.tasks), whole(each.failed_attempts), clock(each.last),
        each.tasks_per_hour === null ? "–" : few(each.tasks_per_hour), whole(each.recent), span(each.seconds_a_task)])),
    make("p", { className: "note" }, `${whole(said.workers.count)} workers have recorded tasks`
      + `${said.workers.count > rows.length ? `; the ${rows.length} that were active last are listed` : ""}. A worker appears with its first record.${partly}`)]);
  fill("stages", said.stages, (stages) => table(
    [["step"], ["pipeline"], ["tasks", 1], ["done", 1], ["skipped", 1], ["failed", 1], ["left", 1], ["stored", 1], ["first record"], ["last record"], ["seconds by operator"]],
    stages.map((each) => [each.name + (each.taken_from ? ` (taken over from ${each.taken_from})` : each.closed ? " (closed)" : ""), each.line,
      whole(each.tasks), whole(each.counts.done), whole(each.counts.skipped), whole(each.counts.failed), whole(each.left),
      bytes(each.stored_bytes), clock(each.first), clock(each.last),
      Object.entries(each.seconds).map(([name, s]) => `${name} ${span(s)}`).join(", ")])));
}

function renderErrors(groups) {
  if (!groups.length) return make("p", { className: "note" }, "No attempt has failed in the records read so far.");
  return groups.map((group) => {
    const key = `${group.kind} ${group.reason}`;
    const examples = group.examples.flatMap((each) => [make("h3", {}, taskButton(each.number, each.box)), ...failed(each)]);
    const node = make("details", { open: open.has(key) },
      make("summary", {}, make("b", {}, `${whole(group.count)} × ${group.kind}`), ` ${group.reason} (last ${clock(group.last)})`), ...examples);
    node.addEventListener("toggle", () => open[node.open ? "add" : "delete"](key));
    return node;
  });
}

function renderCost(said) {
  const field = $("price");
  if (!field.dataset.set && said.price !== null) { field.value = said.price; field.dataset.set = "1"; }
  const price = field.value === "" ? null : Number(field.value);
  $("price-source").textContent = price === said.price ? said.price_source : "";
  const { hours, hours_foretold: estimate } = said.cost;
  const priced = (value) => price === null ? "needs a price" : dollars(value === null ? null : value * price);
  fill("cost", [hours.toFixed(3), estimate && estimate.toFixed(2), price, said.spending], () => [...pairs([
    ...(said.spending ? [["cost of the run, reported by workers", said.spending]] : []),
    ["worker hours so far", few(hours)], ["worker hours, estimated", estimate === null ? "–" : few(estimate)],
    ["cost so far", priced(hours)], ["cost, estimated", priced(estimate)]]).childNodes]);
}

function renderSpeed(said) {
  const canvas = $("speed"), context = canvas.getContext("2d");
  const [width, height, left, bottom] = [canvas.width, canvas.height, 46, 20];
  context.clearRect(0, 0, width, height);
  const given = said.throughput;
  if (!given) { $("speed-note").textContent = "No task has ended yet."; return; }
  const style = getComputedStyle(document.documentElement);
  const totals = given.done.map((n, k) => n + given.skipped[k] + given.failed[k]);
  const most = Math.max(1, ...totals);
  const step = (width - left) / totals.length, scale = (height - bottom - 12) / most;
  totals.forEach((_, k) => {
    let top = height - bottom;
    for (const name of ["done", "skipped", "failed"]) {
      const size = given[name][k] * scale;
      context.fillStyle = style.getPropertyValue(`--${name}`);
      context.fillRect(left + k * step, top - size, Math.max(1, step - (step > 4 ? 1 : 0)), size);
      top -= size;
    }
  });
  context.fillStyle = style.getPropertyValue("--soft");
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "right";
  context.fillText(whole(most), left - 6, 16);
  context.fillText("0", left - 6, height - bottom);
  context.fillText(clock(given.start + totals.length * given.width_s).slice(0, 16), width, height - 5);
  context.textAlign = "left";
  context.fillText(clock(given.start).slice(0, 16), left, height - 5);
  const { known, ended } = said.history;
  $("speed-note").textContent = `Tasks that ended in each ${span(given.width_s)}, by the clocks of the workers`
    + (known < ended ? `; ${whole(known)} of ${whole(ended)} records are read so far.` : ".");
}

// --- start ---------------------------------------------------------------------------------------

$("stage").addEventListener("change", () => { stage = $("stage").value; poll(); });
$("whole").addEventListener("change", () => { map.whole = $("whole").checked; drawMap(); });
$("t").addEventListener("input", () => {
  map.time = Number($("t").value);
  $("time-row").querySelector("output").textContent = $("t").value;
  drawMap();
});
$("price").addEventListener("input", () => { $("price").dataset.set = "1"; if (latest) renderCost(latest); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
addEventListener("resize", drawMap);
$("all").hidden = !/\/runs\/[^/]+\/$/.test(location.pathname); // the page is one of many
poll();
