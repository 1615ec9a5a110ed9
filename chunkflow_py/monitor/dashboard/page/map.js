"use strict";
// The map of tasks: three planes through a raster (time, z, y, x) of states, one byte per task.

const AXES = ["z", "y", "x"];
// [across, down, through], as positions in zyx.
const PLANES = { XY: [2, 1, 0], XZ: [2, 0, 1], YZ: [1, 0, 2] };
// If a pixel shows several tasks, it has the colour of the first of these states that one of them has,
// else the mean of their colours.
const URGENT = ["failed", "retry", "running"];
const LEAST_CELL = 8, MOST_CELL = 24; // pixels per cell, if there is room

class TaskMap {
  constructor(layout, cells) {
    this.layout = layout;
    this.count = layout.count.slice(1);
    const total = layout.count.reduce((a, b) => a * b, 1);
    this.cells = cells;
    this.raster = new Uint8Array(total);
    this.numbers = null;
    if (cells) {
      this.numbers = new Int32Array(total).fill(-1);
      cells.forEach((cell, number) => { this.numbers[cell] = number; });
    }
    this.at = this.count.map((n) => Math.floor((n - 1) / 2));
    this.time = 0;
    this.whole = false;
    const style = getComputedStyle(document.documentElement);
    this.colours = layout.codes.map((name) => {
      const hex = style.getPropertyValue("--" + name).trim().slice(1);
      const long = hex.length === 3 ? [...hex].map((c) => c + c).join("") : hex;
      return [0, 2, 4].map((k) => parseInt(long.slice(k, k + 2), 16));
    });
    this.urgency = layout.codes.map((name) => URGENT.length - 1 - URGENT.indexOf(name));
    this.urgency = this.urgency.map((rank, k) => (URGENT.includes(layout.codes[k]) ? rank + 1 : 0));
    this.byUrgency = [null, ...[...URGENT].reverse().map((name) => layout.codes.indexOf(name))];
  }

  // Apply a response of map.bin: all states, or changed numbers and their states.
  take(buffer, isWhole) {
    if (isWhole) {
      const states = new Uint8Array(buffer);
      if (!this.cells) this.raster.set(states);
      else states.forEach((code, number) => { this.raster[this.cells[number]] = code; });
      return;
    }
    const count = buffer.byteLength / 5;
    const view = new DataView(buffer);
    for (let k = 0; k < count; k++) {
      const number = view.getUint32(4 * k, true);
      this.raster[this.cells ? this.cells[number] : number] = view.getUint8(4 * count + k);
    }
  }

  // Show the layers of a running task, or else of a failed one.
  start() {
    const cell = ["running", "failed"].map((name) => this.raster.indexOf(this.layout.codes.indexOf(name)));
    const at = cell.find((each) => each >= 0);
    if (at === undefined) return;
    const [nz, ny, nx] = this.count;
    this.time = Math.floor(at / (nz * ny * nx));
    this.at = [Math.floor(at / (ny * nx)) % nz, Math.floor(at / nx) % ny, at % nx];
  }

  // Steps in the raster along z, y and x, and the first cell of the time point that is shown.
  steps() {
    const [nz, ny, nx] = this.count;
    return { step: [ny * nx, nx, 1], base: this.time * nz * ny * nx };
  }

  layers(through) {
    return this.whole ? [0, this.count[through]] : [this.at[through], this.at[through] + 1];
  }

  // Width and height of a plane in pixels: in proportion to its voxels, unless cells become too small.
  size(name, room) {
    const [across, down] = PLANES[name];
    const extent = this.layout.extent;
    const longest = Math.max(...extent);
    const side = (axis) => {
      const cells = this.count[axis];
      const wanted = Math.max(Math.min(room * 0.6, cells * LEAST_CELL), (room * extent[axis]) / longest);
      // A whole number of pixels per cell, if there is room.
      return cells < wanted ? cells * Math.min(MOST_CELL, Math.floor(wanted / cells)) : Math.round(wanted);
    };
    return [side(across), side(down)];
  }

  draw(canvas, name, room) {
    const [across, down, through] = PLANES[name];
    const [width, height] = this.size(name, room);
    const wide = Math.min(this.count[across], width);
    const high = Math.min(this.count[down], height);
    const sums = new Float32Array(3 * wide * high);
    const seen = new Uint32Array(wide * high);
    const urgent = new Uint8Array(wide * high);
    const { step, base } = this.steps();
    const [first, stop] = this.layers(through);
    for (let v = 0; v < this.count[down]; v++) {
      const row = Math.floor((v * high) / this.count[down]) * wide;
      for (let h = 0; h < this.count[across]; h++) {
        const pixel = row + Math.floor((h * wide) / this.count[across]);
        const start = base + v * step[down] + h * step[across];
        for (let k = first; k < stop; k++) {
          const code = this.raster[start + k * step[through]];
          if (!code) continue;
          seen[pixel]++;
          if (this.urgency[code] > urgent[pixel]) urgent[pixel] = this.urgency[code];
          const colour = this.colours[code];
          sums[3 * pixel] += colour[0];
          sums[3 * pixel + 1] += colour[1];
          sums[3 * pixel + 2] += colour[2];
        }
      }
    }
    const image = new ImageData(wide, high);
    for (let pixel = 0; pixel < wide * high; pixel++) {
      if (!seen[pixel]) continue; // no task: the pixel stays transparent
      const one = urgent[pixel] ? this.colours[this.byUrgency[urgent[pixel]]] : null;
      for (let c = 0; c < 3; c++) {
        image.data[4 * pixel + c] = one ? one[c] : Math.round(sums[3 * pixel + c] / seen[pixel]);
      }
      image.data[4 * pixel + 3] = 255;
    }
    const small = new OffscreenCanvas(wide, high);
    small.getContext("2d").putImageData(image, 0, 0);
    canvas.width = width;
    canvas.height = height;
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.drawImage(small, 0, 0, width, height);
    const cell = [width / this.count[across], height / this.count[down]];
    if (Math.min(...cell) >= 6) {
      context.fillStyle = "#ffffff90";
      for (let h = 1; h < this.count[across]; h++) context.fillRect(Math.round(h * cell[0]), 0, 1, height);
      for (let v = 1; v < this.count[down]; v++) context.fillRect(0, Math.round(v * cell[1]), width, 1);
    }
  }

  // The task under a point of a canvas; if the pixel shows several tasks, the most urgent one.
  find(canvas, name, px, py) {
    const [across, down, through] = PLANES[name];
    const span = (p, size, cells) => {
      const low = Math.min(cells - 1, Math.max(0, Math.floor((p * cells) / size)));
      return [low, cells > size ? Math.min(cells, Math.ceil(((p + 1) * cells) / size)) : low + 1];
    };
    const [h0, h1] = span(Math.floor(px), canvas.width, this.count[across]);
    const [v0, v1] = span(Math.floor(py), canvas.height, this.count[down]);
    const { step, base } = this.steps();
    const [first, stop] = this.layers(through);
    let best = null;
    for (let v = v0; v < v1; v++) {
      for (let h = h0; h < h1; h++) {
        for (let k = first; k < stop; k++) {
          const cell = base + v * step[down] + h * step[across] + k * step[through];
          const code = this.raster[cell];
          if (code && (!best || this.urgency[code] > this.urgency[best.code])) best = { cell, code };
        }
      }
    }
    if (!best) return null;
    return { number: this.numbers ? this.numbers[best.cell] : best.cell, state: this.layout.codes[best.code] };
  }
}
