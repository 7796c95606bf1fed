// The script of the report page. The page can be read without it. The script adds local times, sorting, searching, all
// rows of long tables, and the values of charts at the pointer. It loads nothing and stores nothing.
'use strict';
(() => {
  const THIN = '\u202f';
  const MINUS_INFINITY = -Infinity;

  // --- Formats numbers as the page itself does (crates/page/src/quantity.rs).
  const count = (value) => String(value).replace(/\B(?=(\d{3})+(?!\d))/g, THIN);
  const decimals = (value, digits) => {
    const text = value.toFixed(digits);
    return text.includes('.') ? text.replace(/\.?0+$/, '') : text;
  };
  const scaled = (value, scales) => {
    const [scale, unit] = scales.find(([least]) => value >= least) || scales[scales.length - 1];
    return decimals(value / (scale || 1), 3) + THIN + unit;
  };
  const time = (ns) => scaled(Number(ns), [[1e9, 's'], [1e6, 'ms'], [1e3, 'µs'], [0, 'ns']]);
  const bits = (value) => scaled(Number(value), [[1e9, 'Gbit/s'], [1e6, 'Mbit/s'], [1e3, 'kbit/s'], [0, 'bit/s']]);
  const rate = (milli) => {
    const value = Number(milli);
    const whole = count(Math.floor(value / 1000));
    const fraction = value >= 1e6 ? 0 : value % 1000;
    const rest = fraction ? '.' + String(fraction).padStart(3, '0').replace(/0+$/, '') : '';
    return `${whole}${rest} frames/s`;
  };
  const shareOf = (text) => {
    const [part, whole] = text.split('/').map(Number);
    return whole > 0 ? part / whole : 0;
  };
  const percent = (text) => {
    const [part, whole] = text.split('/').map(Number);
    if (part === 0 || whole === 0) return '0' + THIN + '%';
    const value = (part * 100) / whole;
    if (value < 0.0001) return '<' + THIN + '0.0001' + THIN + '%';
    if (part < whole && value > 99.9999) return '>' + THIN + '99.9999' + THIN + '%';
    return decimals(value, 4) + THIN + '%';
  };
  const FORMS = { text: (text) => text, frames: count, rate, bits, time, share: percent };

  // What a value is sorted by: its number or share if it is one, otherwise its text; null for a value
  // that was not measured.
  const sortKey = (value) => {
    if (value === null || value === undefined || value === '') return null;
    if (typeof value === 'number') return value;
    if (/^\d+\/\d+$/.test(value)) return shareOf(value);
    return /^-?\d+(\.\d+)?$/.test(value) ? Number(value) : value;
  };
  const compare = (one, other) => {
    if (typeof one === 'string' || typeof other === 'string') {
      return String(one).localeCompare(String(other), undefined, { numeric: true });
    }
    return one - other;
  };
  // Returns the indices of the keys in sorted order. Null comes last in both directions, and equal keys keep their order.
  const sortedOrder = (keys, isDown) => {
    const order = keys.map((_, index) => index);
    return order.sort((a, b) => {
      if (keys[a] === null || keys[b] === null) return (keys[a] === null) - (keys[b] === null) || a - b;
      return (isDown ? compare(keys[b], keys[a]) : compare(keys[a], keys[b])) || a - b;
    });
  };

  const make = (tag, properties = {}, ...children) => {
    const element = document.createElement(tag);
    Object.entries(properties).forEach(([name, value]) => {
      if (name in element) element[name] = value;
      else element.setAttribute(name, value);
    });
    element.append(...children);
    return element;
  };

  // --- Adds local times after the times in UTC.
  const addLocalTimes = () => {
    const form = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'long' });
    document.querySelectorAll('time[datetime]').forEach((element) => {
      const moment = new Date(element.dateTime);
      // If local time is UTC, both times would be the same.
      if (moment.getTimezoneOffset() !== 0) element.after(` (local: ${form.format(moment)})`);
    });
  };

  // --- Makes headings sort their table. `onSort(column, isDown)` reorders the rows.
  const makeSortable = (table, onSort) => {
    const headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, column) => {
      const arrow = make('span', { className: 'arrow', 'aria-hidden': 'true' });
      const button = make('button', { type: 'button' }, ...heading.childNodes, arrow);
      heading.append(button);
      button.addEventListener('click', () => {
        // The first click on a column of numbers sorts the largest first: readers usually look for it.
        const before = heading.getAttribute('aria-sort');
        const isDown = before ? before === 'ascending' : heading.classList.contains('number');
        headings.forEach((other) => {
          other.removeAttribute('aria-sort');
          other.querySelector('.arrow').textContent = '';
        });
        heading.setAttribute('aria-sort', isDown ? 'descending' : 'ascending');
        arrow.textContent = isDown ? '▼' : '▲';
        onSort(column, isDown);
      });
    });
  };

  // Adds a search box above a table. `onSearch(words)` hides the other rows and returns how many match.
  const addSearch = (box, total, onSearch) => {
    const input = make('input', { type: 'search', autocomplete: 'off', spellcheck: false });
    const found = make('span', { className: 'muted', role: 'status' });
    const show = () => {
      const left = onSearch(input.value.trim().toLowerCase());
      found.textContent = input.value ? `${count(left)} of ${count(total)} rows` : '';
    };
    input.addEventListener('input', show);
    box.before(make('div', { className: 'tools no-print' }, make('label', {}, 'Search ', input), found));
  };

  const sortRows = (table) => {
    const body = table.tBodies[0];
    makeSortable(table, (column, isDown) => {
      const rows = [...body.rows];
      const keys = rows.map((row) => {
        const cell = row.cells[column];
        if (cell.querySelector('.absent')) return null;
        return sortKey(cell.dataset.value === undefined ? cell.textContent : cell.dataset.value);
      });
      body.append(...sortedOrder(keys, isDown).map((index) => rows[index]));
    });
    const rows = [...body.rows];
    if (rows.length < 8) return;
    addSearch(table.closest('.table-box'), rows.length, (words) => {
      let left = 0;
      rows.forEach((row) => {
        row.hidden = !row.textContent.toLowerCase().includes(words);
        left += row.hidden ? 0 : 1;
      });
      document.querySelectorAll('details.stream').forEach((stream) => {
        stream.hidden = !stream.dataset.name.toLowerCase().includes(words);
      });
      return left;
    });
  };

  // --- A long table: only the visible rows and a few more are elements.
  const ROW_HEIGHT = 32;
  const SPARE_ROWS = 8;
  const showAllRows = (table, data) => {
    const box = table.closest('.table-box');
    const body = table.tBodies[0];
    const total = data.columns[0].length;
    const names = data.columns.map((column, index) => (data.forms[index] === 'text' ? column : null)).filter(Boolean);
    const searched = Array.from({ length: total }, (_, row) => names.map((column) => column[row]).join(' ').toLowerCase());
    let order = searched.map((_, row) => row);
    let shown = order;
    let words = '';
    const filler = () => make('tr', { className: 'filler', 'aria-hidden': 'true' }, make('td', { colSpan: data.columns.length }));
    const above = filler();
    const below = filler();
    const pool = [];
    let first = -1;

    const fill = (element, place) => {
      const row = shown[place];
      element.setAttribute('aria-rowindex', place + 2);
      data.columns.forEach((column, index) => {
        const cell = element.cells[index];
        const value = column[row];
        const text = value === null ? '–' : FORMS[data.forms[index]](value);
        if (cell.firstChild.data !== text) cell.firstChild.data = text;
        if (index === 0) cell.title = text;
      });
    };
    const newRow = () => {
      const cells = data.forms.map((form, index) => {
        const cell = make(index === 0 ? 'th' : 'td', { className: form === 'text' ? '' : 'number' }, document.createTextNode(''));
        if (index === 0) cell.scope = 'row';
        return cell;
      });
      return make('tr', {}, ...cells);
    };
    const draw = (isForced) => {
      const seen = Math.ceil((box.clientHeight || 576) / ROW_HEIGHT) + 2 * SPARE_ROWS;
      const wanted = Math.max(0, Math.min(Math.floor(box.scrollTop / ROW_HEIGHT) - SPARE_ROWS, shown.length - seen));
      if (wanted === first && !isForced) return;
      first = wanted;
      const last = Math.min(first + seen, shown.length);
      while (pool.length < last - first) {
        pool.push(newRow());
        below.before(pool[pool.length - 1]);
      }
      pool.forEach((element, index) => {
        element.hidden = first + index >= last;
        if (!element.hidden) fill(element, first + index);
      });
      above.firstChild.style.height = `${first * ROW_HEIGHT}px`;
      below.firstChild.style.height = `${(shown.length - last) * ROW_HEIGHT}px`;
    };
    const search = () => {
      shown = words ? order.filter((row) => searched[row].includes(words)) : order;
      table.setAttribute('aria-rowcount', shown.length + 1);
      box.scrollTop = 0;
      draw(true);
      return shown.length;
    };

    body.append(above, below);
    let isAsked = false;
    box.addEventListener('scroll', () => {
      if (isAsked) return;
      isAsked = true;
      requestAnimationFrame(() => {
        isAsked = false;
        draw(false);
      });
    });
    makeSortable(table, (column, isDown) => {
      order = sortedOrder(data.columns[column].map(sortKey), isDown);
      search();
    });
    addSearch(box, total, (text) => {
      words = text;
      return search();
    });
    document.getElementById('streams-all').hidden = false;
    document.getElementById('streams-worst').classList.add('print-only');
    // The streams with the largest share of lost frames come first.
    const loss = data.forms.indexOf('share');
    table.tHead.rows[0].cells[loss].querySelector('button').click();
  };

  // --- Shows the values of a chart at the pointer, or where the keys have moved the cursor.
  const unlist = (text) => {
    const values = [];
    if (text) {
      text.split(' ').forEach((part) => {
        const [value, times] = part.split('*');
        for (let n = Number(times || 1); n > 0; n -= 1) values.push(value === '-' ? null : value);
      });
    }
    return values;
  };
  const UNITS = { ns: time, 'frames/s': (value) => `${count(value)} frames/s`, frames: (value) => `${count(value)} frames` };
  const SVG = 'http://www.w3.org/2000/svg';
  let hint = null;

  const readChart = (chart) => {
    const [left, top, width, height] = chart.dataset.plot.split(' ').map(Number);
    const show = UNITS[chart.dataset.unit] || count;
    const lines = [...chart.querySelectorAll('path[data-low]')].map((path) => ({
      name: path.dataset.name,
      step: Number(path.dataset.step),
      low: unlist(path.dataset.low),
      high: unlist(path.dataset.high || path.dataset.low),
    }));
    return { left, top, width, height, seconds: Number(chart.dataset.seconds), show, lines, bars: readBars(chart) };
  };
  const readBars = (chart) => {
    const path = chart.querySelector('path[data-bars]');
    if (!path) return [];
    const [left, , width] = chart.dataset.plot.split(' ').map(Number);
    const [low, high] = path.dataset.ends.split(' ').map(Number);
    const placeOf = (value) => left + (Math.log(value / low) / Math.log(high / low)) * width;
    const bars = path.dataset.bars.split(' ').map((bar) => bar.split(',').map(Number));
    return bars.map(([from, below, frames]) => [placeOf(from), placeOf(below), from, below, frames]);
  };
  const describeBar = ([, , from, below, frames]) => `${time(from)} to ${time(below)}\n${count(frames)} frames`;
  const describeColumn = (facts, column) => {
    const step = facts.lines[0].step;
    const from = column * step;
    const head = step === 1 ? `second ${from}` : `seconds ${from} to ${Math.min(from + step, facts.seconds) - 1}`;
    const values = facts.lines.map(({ name, low, high }) => {
      if (low[column] === null || low[column] === undefined) return `${name}: not measured`;
      const range = low[column] === high[column] ? facts.show(low[column]) : `${facts.show(low[column])} to ${facts.show(high[column])}`;
      return `${name}: ${range}`;
    });
    return [head, ...values].join('\n');
  };
  const watchChart = (chart) => {
    let facts = null;
    let cursor = null;
    let column = 0;
    const moveTo = (wanted) => {
      facts = facts || readChart(chart);
      const columns = facts.bars.length || Math.max(0, ...facts.lines.map((line) => line.low.length));
      if (!columns) return;
      column = Math.max(0, Math.min(wanted, columns - 1));
      if (!cursor) {
        cursor = document.createElementNS(SVG, 'path');
        cursor.setAttribute('class', 'cursor');
        chart.append(cursor);
      }
      const bar = facts.bars[column];
      const second = bar ? 0 : Math.min((column + 0.5) * facts.lines[0].step, facts.seconds);
      const x = bar ? (bar[0] + bar[1]) / 2 : facts.left + (second / facts.seconds) * facts.width;
      cursor.setAttribute('d', `M${x} ${facts.top}v${facts.height}`);
      if (!hint) {
        hint = make('div', { className: 'hint no-print', role: 'status' });
        document.body.append(hint);
      }
      hint.textContent = bar ? describeBar(bar) : describeColumn(facts, column);
      hint.hidden = false;
      const box = chart.getBoundingClientRect();
      const place = box.left + (x / 400) * box.width;
      const fits = place + 12 + hint.offsetWidth < document.documentElement.clientWidth;
      hint.style.left = `${Math.max(4, fits ? place + 12 : place - 12 - hint.offsetWidth) + window.scrollX}px`;
      hint.style.top = `${box.top + 8 + window.scrollY}px`;
    };
    const leave = () => {
      if (cursor) cursor.remove();
      cursor = null;
      if (hint) hint.hidden = true;
    };
    chart.addEventListener('pointermove', (event) => {
      facts = facts || readChart(chart);
      const box = chart.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * 400;
      if (facts.bars.length) {
        const after = facts.bars.findIndex((bar) => bar[1] >= x);
        moveTo(after < 0 ? Infinity : after);
      } else if (facts.lines.length) {
        moveTo(Math.floor((x - facts.left) / facts.width * facts.seconds / facts.lines[0].step));
      }
    });
    chart.addEventListener('pointerleave', leave);
    chart.addEventListener('blur', leave);
    chart.addEventListener('focus', () => moveTo(column));
    chart.addEventListener('keydown', (event) => {
      const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: MINUS_INFINITY, End: Infinity };
      if (event.key === 'Escape') leave();
      if (!(event.key in steps)) return;
      event.preventDefault();
      moveTo(column + steps[event.key]);
    });
  };

  // --- A button that unfolds the details of all streams, for printing.
  const addUnfold = () => {
    const streams = [...document.querySelectorAll('details.stream')];
    if (streams.length < 2) return;
    const button = make('button', { type: 'button' }, 'Unfold all');
    button.addEventListener('click', () => {
      const isOpen = streams.every((stream) => stream.open);
      streams.forEach((stream) => { stream.open = !isOpen; });
      button.textContent = isOpen ? 'Unfold all' : 'Fold all';
    });
    streams[0].before(make('div', { className: 'tools no-print' }, button));
  };

  // --- Marks boxes that are narrower than their table; the style sheet then shows that they scroll. The mark changes
  // sizes, so it is set in the next animation frame: the observer must not be called again while it runs.
  const markWideTables = () => {
    const observer = new ResizeObserver((entries) => requestAnimationFrame(() => entries.forEach(({ target }) => {
      const box = target.closest('.table-box');
      box.toggleAttribute('data-wide', box.scrollWidth > box.clientWidth + 1);
    })));
    document.querySelectorAll('.table-box, .table-box > table').forEach((element) => observer.observe(element));
  };

  addLocalTimes();
  document.querySelectorAll('table.sortable').forEach(sortRows);
  const data = document.getElementById('streams-data');
  if (data) showAllRows(document.getElementById('streams-virtual'), JSON.parse(data.textContent));
  document.querySelectorAll('svg[data-plot]').forEach((chart) => {
    chart.setAttribute('tabindex', '0');
    watchChart(chart);
  });
  addUnfold();
  markWideTables();
})();
