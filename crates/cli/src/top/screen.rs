//! `top` on a terminal: nodes, processes, and what is known of the one that is chosen.

use super::{failed, rest};
use crate::output::{CommandFailure, Ending};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Gauge, Paragraph, Row, Table, TableState};
use ratatui::Frame;
use std::collections::BTreeMap;
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::time::{Duration, Instant};
use terrace_terrace::types::text::fold;
use terrace_terrace::types::{Bytes, Nanos};
use terrace_terrace::usage::{
    printable, BytesByNode, MemoryUsage, NodeUsage, ProcessUsage, UsageWatch,
};

/// Lines of notes at most, so that processes keep their place.
const MAX_NOTE_LINES: usize = 4;

/// How often keys are looked for while nothing new has come.
const KEYS: Duration = Duration::from_millis(50);

/// What the lower half shows of the chosen process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Details {
    Mappings,
    Threads,
    Nodes,
}

impl Details {
    const ALL: [Self; 3] = [Self::Mappings, Self::Threads, Self::Nodes];

    const fn name(self) -> &'static str {
        match self {
            Self::Mappings => "mappings",
            Self::Threads => "threads",
            Self::Nodes => "nodes",
        }
    }

    fn next(self) -> Self {
        let at = Self::ALL.iter().position(|d| *d == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }
}

/// Which processes come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Memory,
    Samples,
}

/// Whether new figures are shown as they come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Updates {
    Shown,
    Paused,
}

/// What a key asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Continue,
    End,
}

/// What is shown, and how.
#[derive(Debug)]
pub struct TopScreen {
    usage: Option<MemoryUsage>,
    chosen: Option<i32>,
    details: Details,
    order: Order,
    updates: Updates,
}

/// Runs until q, Escape or Ctrl-C.
pub fn run(mut watch: UsageWatch, span: Nanos) -> Ending {
    let (looks, looked) = channel();
    // Not awaited: it may sleep for an hour, and holds nothing that must be given back.
    std::thread::spawn(move || loop {
        let begin = Instant::now();
        let sampled = Nanos(span.get() / 4);
        let usage = watch.look(sampled);
        let over = usage.is_err();
        // Nobody listens once the screen is gone.
        if looks.send(usage).is_err() || over {
            return;
        }
        std::thread::sleep(rest(begin.elapsed(), sampled, span));
    });
    let terminal_failed = |e: std::io::Error| CommandFailure::failed(format!("top: {e}"));
    let mut terminal = ratatui::try_init().map_err(terminal_failed)?;
    let mut screen = TopScreen::new();
    let ending = loop {
        if let Err(e) = terminal.draw(|frame| screen.draw(frame)) {
            break Err(terminal_failed(e));
        }
        match keys(&mut screen) {
            Ok(Next::Continue) => {}
            Ok(Next::End) => break Ok(0),
            Err(e) => break Err(terminal_failed(e)),
        }
        match looked.recv_timeout(KEYS) {
            Ok(Ok(usage)) => screen.show(usage),
            Ok(Err(error)) => break Err(failed(error)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break Ok(0),
        }
    };
    ratatui::restore();
    ending
}

/// Takes all keys that wait.
fn keys(screen: &mut TopScreen) -> std::io::Result<Next> {
    while event::poll(Duration::ZERO)? {
        if let Event::Key(key) = event::read()? {
            if key.kind != KeyEventKind::Release && screen.key(key) == Next::End {
                return Ok(Next::End);
            }
        }
    }
    Ok(Next::Continue)
}

impl TopScreen {
    fn new() -> Self {
        Self {
            usage: None,
            chosen: None,
            details: Details::Mappings,
            order: Order::Memory,
            updates: Updates::Shown,
        }
    }

    fn show(&mut self, usage: MemoryUsage) {
        if self.updates == Updates::Shown {
            self.usage = Some(usage);
        }
    }

    fn key(&mut self, key: KeyEvent) -> Next {
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return Next::End
            }
            KeyCode::Char('q') | KeyCode::Esc => return Next::End,
            KeyCode::Down | KeyCode::Char('j') => self.choose(1),
            KeyCode::Up | KeyCode::Char('k') => self.choose(-1),
            KeyCode::Tab => self.details = self.details.next(),
            KeyCode::Char('s') => {
                self.order = match self.order {
                    Order::Memory => Order::Samples,
                    Order::Samples => Order::Memory,
                }
            }
            KeyCode::Char(' ') => {
                self.updates = match self.updates {
                    Updates::Shown => Updates::Paused,
                    Updates::Paused => Updates::Shown,
                }
            }
            _ => {}
        }
        Next::Continue
    }

    /// The processes in their order.
    fn processes(&self) -> Vec<&ProcessUsage> {
        let mut all: Vec<&ProcessUsage> = self.usage.iter().flat_map(|u| &u.processes).collect();
        if self.order == Order::Samples {
            let samples = |p: &ProcessUsage| p.accesses.as_ref().map_or(0, |a| a.samples);
            all.sort_by_key(|p| std::cmp::Reverse(samples(p)));
        }
        all
    }

    /// Where the chosen process is in its order; the first where it has ended.
    fn at(&self, processes: &[&ProcessUsage]) -> usize {
        processes.iter().position(|p| Some(p.pid) == self.chosen).unwrap_or(0)
    }

    fn choose(&mut self, step: isize) {
        let processes = self.processes();
        let at = self.at(&processes).saturating_add_signed(step);
        self.chosen = processes.get(at.min(processes.len().saturating_sub(1))).map(|p| p.pid);
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let Some(usage) = &self.usage else {
            frame.render_widget(Paragraph::new("looking ..."), frame.area());
            return;
        };
        let heads = usage.nodes.len() as u16 + 1;
        let notes = note_lines(usage, frame.area().width).len() as u16;
        let [nodes, processes, details, foot] = Layout::vertical([
            Constraint::Length(heads),
            Constraint::Min(4),
            Constraint::Percentage(40),
            Constraint::Length(1 + notes),
        ])
        .areas(frame.area());
        draw_nodes(frame, nodes, usage);
        self.draw_processes(frame, processes, usage);
        self.draw_details(frame, details, usage);
        self.draw_foot(frame, foot, usage);
    }

    fn draw_processes(&self, frame: &mut Frame<'_>, area: Rect, usage: &MemoryUsage) {
        let processes = self.processes();
        let mut columns =
            vec![Column::right("pid", 8), Column::left("name", 16), Column::right("memory", 10)];
        let nodes = usage.nodes.iter().map(|n| Column::right(format!("node {}", n.node), 10));
        columns.extend(nodes);
        columns.extend([
            Column::right("samples", 9),
            Column::right("local", 6),
            Column::right("hot", 10),
            Column::right("cold", 10),
            Column::right("threads", 7),
        ]);
        let rows = processes.iter().map(|process| process_cells(process, &usage.nodes)).collect();
        let order = match self.order {
            Order::Memory => "most memory first",
            Order::Samples => "most samples first",
        };
        let mut state = TableState::default().with_selected(Some(self.at(&processes)));
        let table = fitted(columns, rows, area.width)
            .block(Block::new().borders(Borders::TOP).title(format!(" processes, {order} ")))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        frame.render_stateful_widget(table, area, &mut state);
    }

    fn draw_details(&self, frame: &mut Frame<'_>, area: Rect, usage: &MemoryUsage) {
        let processes = self.processes();
        let Some(process) = processes.get(self.at(&processes)) else { return };
        let mut title = vec![Span::raw(format!(" {} ", printable(&process.name)))];
        for details in Details::ALL {
            let style = match details == self.details {
                true => Style::new().add_modifier(Modifier::REVERSED),
                false => Style::new(),
            };
            title.extend([Span::styled(details.name(), style), Span::raw(" ")]);
        }
        let table = match self.details {
            Details::Mappings => mappings(process, &usage.nodes, area.width),
            Details::Threads => threads(process, area.width),
            Details::Nodes => nodes_of(process, &usage.nodes, area.width),
        };
        let block = Block::new().borders(Borders::TOP).title(Line::from(title));
        frame.render_widget(table.block(block), area);
    }

    fn draw_foot(&self, frame: &mut Frame<'_>, area: Rect, usage: &MemoryUsage) {
        let paused = match self.updates {
            Updates::Shown => "space pause",
            Updates::Paused => "PAUSED, space goes on",
        };
        let mut lines = vec![Line::from(format!(
            "q end  up/down choose  tab mappings, threads, nodes  s order  {paused}"
        ))];
        lines.extend(note_lines(usage, area.width).into_iter().map(Line::from));
        frame.render_widget(Paragraph::new(lines), area);
    }
}

/// Notes, broken at the edge.
fn note_lines(usage: &MemoryUsage, columns: u16) -> Vec<String> {
    let fold = |note: &String| fold(&format!("note: {note}"), usize::from(columns));
    let lines = usage.notes.iter().map(fold).collect::<Vec<_>>().join("\n");
    lines.lines().take(MAX_NOTE_LINES).map(str::to_owned).collect()
}

fn draw_nodes(frame: &mut Frame<'_>, area: Rect, usage: &MemoryUsage) {
    let rows = Layout::vertical(vec![Constraint::Length(1); usage.nodes.len() + 1]).split(area);
    for (node, row) in usage.nodes.iter().zip(rows.iter()) {
        let [name, bar, rates] = Layout::horizontal([
            Constraint::Length(9),
            Constraint::Min(20),
            Constraint::Length(if node.bandwidth().is_some() { 42 } else { 0 }),
        ])
        .areas(*row);
        let used = node.total_bytes.saturating_sub(node.free_bytes);
        let share = used as f64 / node.total_bytes.max(1) as f64;
        let label = format!("{} of {}", Bytes(used), Bytes(node.total_bytes));
        frame.render_widget(Paragraph::new(format!("node {}", node.node)), name);
        let gauge = Gauge::default()
            .ratio(share.clamp(0.0, 1.0))
            .label(label)
            .use_unicode(true)
            .gauge_style(Style::new().fg(Color::Blue));
        frame.render_widget(gauge, bar);
        frame.render_widget(Paragraph::new(node.bandwidth().unwrap_or_default()), rates);
    }
    let moves = usage.moves.map_or("pages moved are not known".to_owned(), |m| m.to_string());
    if let Some(row) = rows.last() {
        frame.render_widget(Paragraph::new(moves), *row);
    }
}

/// A column of a table.
struct Column {
    title: String,
    width: u16,
    right: bool,
}

impl Column {
    fn right(title: impl Into<String>, width: u16) -> Self {
        Self { title: title.into(), width, right: true }
    }

    fn left(title: impl Into<String>, width: u16) -> Self {
        Self { title: title.into(), width, right: false }
    }

    fn cell(&self, text: &str) -> Cell<'static> {
        let line = Line::from(text.to_owned());
        Cell::from(if self.right { line.right_aligned() } else { line })
    }
}

/// A table of as many columns as fit, first ones first; figures are never cut.
fn fitted(columns: Vec<Column>, rows: Vec<Vec<String>>, width: u16) -> Table<'static> {
    let mut end = 0;
    let kept: Vec<Column> = columns
        .into_iter()
        .take_while(|column| {
            end += column.width + 1;
            end <= width + 1
        })
        .collect();
    let widths: Vec<Constraint> = kept.iter().map(|c| Constraint::Length(c.width)).collect();
    let head = Row::new(kept.iter().map(|c| c.cell(&c.title)).collect::<Vec<_>>())
        .style(Style::new().add_modifier(Modifier::BOLD));
    let rows = rows.into_iter().map(|cells| {
        Row::new(kept.iter().zip(&cells).map(|(c, text)| c.cell(text)).collect::<Vec<_>>())
    });
    Table::new(rows.collect::<Vec<_>>(), widths).header(head)
}

fn by_node<'a>(
    bytes: &'a BytesByNode,
    nodes: &'a [NodeUsage],
) -> impl Iterator<Item = String> + 'a {
    nodes.iter().map(|n| Bytes(bytes.get(&n.node).copied().unwrap_or(0)).to_string())
}

fn known<T: ToString>(value: Option<T>) -> String {
    value.map_or("-".to_owned(), |value| value.to_string())
}

fn percent(share: f64) -> String {
    format!("{:.0}%", 100.0 * share)
}

fn process_cells(process: &ProcessUsage, nodes: &[NodeUsage]) -> Vec<String> {
    let mut cells = vec![
        process.pid.to_string(),
        printable(&process.name),
        Bytes(process.resident_bytes).to_string(),
    ];
    cells.extend(by_node(&process.by_node_bytes, nodes));
    let accesses = process.accesses.as_ref();
    cells.extend([
        known(accesses.map(|a| a.samples)),
        known(accesses.and_then(|a| a.local_share).map(percent)),
        known(accesses.map(|a| Bytes(a.hot_bytes))),
        known(accesses.map(|a| Bytes(a.cold_bytes))),
        process.threads.to_string(),
    ]);
    cells
}

fn mappings(process: &ProcessUsage, nodes: &[NodeUsage], width: u16) -> Table<'static> {
    let mut columns = vec![Column::right("address", 14), Column::left("name", 20)];
    columns.extend(nodes.iter().map(|n| Column::right(format!("node {}", n.node), 10)));
    columns.extend([Column::right("samples", 9), Column::right("hot", 10)]);
    let rows = process.mappings.iter().map(|mapping| {
        let name = match mapping.name.as_str() {
            "" => "anonymous".to_owned(),
            name => printable(name.rsplit('/').next().unwrap_or(name)),
        };
        let mut cells = vec![format!("{:x}", mapping.start), name];
        cells.extend(by_node(&mapping.by_node_bytes, nodes));
        cells.extend([known(mapping.samples), known(mapping.hot_bytes.map(Bytes))]);
        cells
    });
    fitted(columns, rows.collect(), width)
}

/// Counts with their shares of all.
fn shares<K: ToString>(
    counts: impl Iterator<Item = (K, u64)>,
    what: &str,
    width: u16,
) -> Table<'static> {
    let mut counts: Vec<(K, u64)> = counts.collect();
    let all = counts.iter().map(|c| c.1).sum::<u64>().max(1) as f64;
    counts.sort_by_key(|c| std::cmp::Reverse(c.1));
    let rows = counts
        .into_iter()
        .map(|(key, count)| vec![key.to_string(), count.to_string(), percent(count as f64 / all)]);
    let columns =
        vec![Column::right(what, 10), Column::right("samples", 10), Column::right("share", 6)];
    fitted(columns, rows.collect(), width)
}

fn threads(process: &ProcessUsage, width: u16) -> Table<'static> {
    let counts = process.accesses.iter().flat_map(|a| &a.by_thread);
    shares(counts.map(|(tid, n)| (*tid, *n)), "thread", width)
}

/// Of each node: memory, samples by its CPUs, and samples of its memory.
fn nodes_of(process: &ProcessUsage, nodes: &[NodeUsage], width: u16) -> Table<'static> {
    let columns = vec![
        Column::right("node", 6),
        Column::right("memory", 10),
        Column::right("by its CPUs", 12),
        Column::right("of its memory", 14),
    ];
    let rows = nodes.iter().map(|node| {
        let of = |counts: &BTreeMap<u16, u64>| counts.get(&node.node).copied().unwrap_or(0);
        let accesses = process.accesses.as_ref();
        vec![
            node.node.to_string(),
            Bytes(of(&process.by_node_bytes)).to_string(),
            known(accesses.map(|a| of(&a.by_cpu_node))),
            known(accesses.map(|a| of(&a.by_memory_node))),
        ]
    });
    fitted(columns, rows.collect(), width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::backend::TestBackend;
    use ratatui::Terminal;
    use terrace_terrace::usage::{AccessUsage, MappingUsage, MoveRates};

    fn process(pid: i32, name: &str, samples: u64) -> ProcessUsage {
        ProcessUsage {
            pid,
            name: name.to_owned(),
            threads: 4,
            resident_bytes: 3 << 30,
            by_node_bytes: BTreeMap::from([(0, 1 << 30), (2, 2 << 30)]),
            mappings: vec![MappingUsage {
                start: 0x7f00_1234_5000,
                name: "[anon:matrix]".to_owned(),
                by_node_bytes: BTreeMap::from([(2, 2 << 30)]),
                samples: Some(samples / 2),
                hot_bytes: Some(1 << 20),
            }],
            accesses: Some(AccessUsage {
                samples,
                by_thread: BTreeMap::from([(pid, samples / 4), (pid + 1, samples - samples / 4)]),
                by_cpu_node: BTreeMap::from([(0, samples)]),
                by_memory_node: BTreeMap::from([(2, samples)]),
                local_share: Some(0.25),
                hot_bytes: 64 << 20,
                cold_bytes: (3 << 30) - (64 << 20),
            }),
        }
    }

    fn usage() -> MemoryUsage {
        let node = |node: u16, bandwidth: Option<f64>| NodeUsage {
            node,
            total_bytes: 64 << 30,
            free_bytes: 16 << 30,
            read_bytes_per_s: bandwidth,
            written_bytes_per_s: bandwidth.map(|b| b / 4.0),
        };
        MemoryUsage {
            version: 1,
            nodes: vec![node(0, Some(8e9)), node(2, None)],
            moves: Some(MoveRates { migrated_per_s: 1200.0, ..MoveRates::default() }),
            processes: vec![process(100, "solver", 80), process(200, "cache\u{1b}[2J", 4000)],
            sampled_seconds: 0.5,
            lost_samples: 0,
            notes: vec!["some processes are left out".to_owned()],
        }
    }

    fn picture(screen: &TopScreen, columns: u16, lines: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(columns, lines)).expect("made");
        terminal.draw(|frame| screen.draw(frame)).expect("drawn");
        terminal.backend().to_string()
    }

    fn pressed(screen: &mut TopScreen, code: KeyCode) -> Next {
        screen.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn nodes_processes_and_mappings_are_on_the_screen() {
        let mut screen = TopScreen::new();
        assert!(picture(&screen, 80, 24).contains("looking"));
        screen.show(usage());
        let wide = picture(&screen, 130, 24);
        for text in [
            "48 GiB of 64 GiB",
            "pages moved a second: 1200",
            "solver",
            "[anon:matrix]",
            "7f0012345000",
            "25%",
            "most memory first",
            "note: some processes are left out",
            "written",
        ] {
            assert!(wide.contains(text), "{text}: {wide}");
        }
        assert!(!wide.contains('\u{1b}'), "{wide}");
    }

    #[test]
    fn what_does_not_fit_is_left_out_whole() {
        let mut screen = TopScreen::new();
        screen.show(usage());
        let narrow = picture(&screen, 40, 16);
        assert!(narrow.contains("memory") && narrow.contains("3 GiB"), "{narrow}");
        let broken = picture(&screen, 24, 16);
        assert!(
            broken.contains("note: some processes are") && broken.contains("  left out"),
            "{broken}"
        );
        assert!(!narrow.contains("samples  local"), "{narrow}");
        // Nothing fits here; nothing fails.
        for (columns, lines) in [(1, 1), (5, 3), (300, 2)] {
            picture(&screen, columns, lines);
        }
    }

    #[test]
    fn keys_choose_sort_pause_and_end() {
        let mut screen = TopScreen::new();
        assert_eq!(pressed(&mut screen, KeyCode::Down), Next::Continue);
        screen.show(usage());
        pressed(&mut screen, KeyCode::Down);
        assert_eq!(screen.chosen, Some(200));
        pressed(&mut screen, KeyCode::Down);
        assert_eq!(screen.chosen, Some(200), "it is the last");
        pressed(&mut screen, KeyCode::Tab);
        assert!(picture(&screen, 100, 24).contains("3000"), "samples of its second thread");
        pressed(&mut screen, KeyCode::Tab);
        assert!(picture(&screen, 100, 24).contains("of its memory"));
        pressed(&mut screen, KeyCode::Char('s'));
        assert_eq!(screen.processes()[0].pid, 200);
        pressed(&mut screen, KeyCode::Char(' '));
        screen.show(MemoryUsage { processes: Vec::new(), ..usage() });
        assert_eq!(screen.processes().len(), 2, "paused");
        pressed(&mut screen, KeyCode::Char(' '));
        screen.show(MemoryUsage { processes: Vec::new(), ..usage() });
        assert_eq!(screen.processes().len(), 0);
        picture(&screen, 80, 24);
        assert_eq!(pressed(&mut screen, KeyCode::Char('q')), Next::End);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(screen.key(interrupt), Next::End);
    }
}
