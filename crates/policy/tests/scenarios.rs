//! Runs every `scenarios/POLICY/*.md`: prose, a table of settings, tiers and accesses, and the plan
//! expected. `UPDATE_SCENARIOS=1 cargo test -p terrace-policy --test scenarios` accepts what the
//! policies do now; look at the difference before you commit it.
#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use terrace_policy::place::Placement;
use terrace_testkit::{cxl, dcpmm, hbm, numa, tier};
use terrace_types::{
    Area, BitSource, Bytes, BytesPerSec, CellCount, Heat, Nanos, NodeId, PageFlags, PageStat, Pid,
    Plan, Request, Seed, Snapshot, ThroughputSource, Tick, TrackerVisibility, Vpn,
};

const BLESS: &str = "UPDATE_SCENARIOS=1 cargo test -p terrace-policy --test scenarios";

#[test]
fn scenarios() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let mut files = Vec::new();
    find(&root, &mut files);
    files.sort();
    assert!(files.len() >= 16, "only {} scenarios found", files.len());
    let mut failures = String::new();
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap();
        let name = file.strip_prefix(&root).unwrap().display();
        let (before, expected, after) = split(&text).unwrap_or_else(|| panic!("{name}: no plan"));
        let actual = run(&text, &name.to_string());
        if actual == expected {
            continue;
        }
        if std::env::var_os("UPDATE_SCENARIOS").is_some() {
            std::fs::write(file, format!("{before}{actual}{after}")).unwrap();
        } else {
            let _ = writeln!(failures, "scenarios/{name}:\n{}", difference(expected, &actual));
        }
    }
    assert!(failures.is_empty(), "\n{failures}\nIf that is what you want: {BLESS}");
}

fn find(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find(&path, files);
        } else if path.extension().is_some_and(|e| e == "md")
            && path.file_name().is_some_and(|n| n != "README.md")
        {
            files.push(path);
        }
    }
}

/// Text before the plan's block, the block, and the rest.
fn split(text: &str) -> Option<(&str, &str, &str)> {
    let start = text.find("```plan\n")? + "```plan\n".len();
    let end = start + text[start..].find("```")?;
    Some((&text[..start], &text[start..end], &text[end..]))
}

fn difference(expected: &str, actual: &str) -> String {
    let mut out = String::new();
    let (e, a): (Vec<_>, Vec<_>) = (expected.lines().collect(), actual.lines().collect());
    for i in 0..e.len().max(a.len()) {
        match (e.get(i), a.get(i)) {
            (Some(x), Some(y)) if x == y => writeln!(out, "    {x}"),
            (x, y) => {
                if let Some(x) = x {
                    let _ = writeln!(out, "  - {x}");
                }
                y.map_or(Ok(()), |y| writeln!(out, "  + {y}"))
            }
        }
        .unwrap();
    }
    out
}

/// Rows of the table whose first heading is `first`, without headings and rule.
fn table<'a>(text: &'a str, first: &str) -> Vec<Vec<&'a str>> {
    let mut rows: Vec<Vec<&str>> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
        if !line.trim_start().starts_with('|') {
            inside = false;
        } else if cells[0] == first {
            inside = true;
        } else if inside && !cells[0].starts_with("---") {
            rows.push(cells);
        }
    }
    rows
}

fn number(text: &str) -> u64 {
    let hex = text.strip_prefix("0x").map(|h| u64::from_str_radix(h, 16));
    hex.unwrap_or_else(|| text.parse()).unwrap_or_else(|_| panic!("not a number: {text:?}"))
}

fn run(text: &str, name: &str) -> String {
    let settings = table(text, "setting");
    let setting = |key: &str| settings.iter().find(|r| r[0] == key).map(|r| r[1]);
    let machine = match setting("machine").unwrap_or("cxl") {
        "cxl" => cxl(Bytes::mib(64), Bytes::gib(1)),
        "dcpmm" => dcpmm(Bytes::mib(64), Bytes::gib(1)),
        "hbm" => hbm(Bytes::mib(64), Bytes::gib(1)),
        "numa of 2" => numa(2, false),
        "two sockets of dcpmm" => {
            let mut machine = dcpmm(Bytes::mib(64), Bytes::gib(1));
            let second = machine.clone();
            for (node, package) in machine.nodes.iter_mut().zip([0, 0]) {
                node.package = Some(package);
            }
            for (mut node, id) in second.nodes.into_iter().zip([2, 3]) {
                (node.id, node.package) = (NodeId(id), Some(1));
                machine.nodes.push(node);
            }
            machine
        }
        "sockets of 2 cells" => {
            let mut machine = numa(4, true);
            for node in &mut machine.nodes {
                node.package = node.package.map(|p| p / 2);
            }
            machine
        }
        other => panic!("{name}: no machine {other:?}"),
    };
    let policy = setting("policy").unwrap_or_else(|| panic!("{name}: no policy"));
    let mut placement = Placement::new(policy.parse().unwrap(), &machine);
    for row in settings.iter().filter(|r| r[0].starts_with("param ")) {
        placement.set(&row[0]["param ".len()..], row[1]).unwrap();
    }
    let mut snapshot = snapshot(text, setting("bits"), setting("sampled ms"));
    snapshot.sees.pages = setting("samples") == Some("page by page");
    let steps = setting("steps").map_or(1, number);
    let mut out = String::new();
    for step in 0..steps {
        let plan = placement.step(&snapshot, Tick(step * 100_000_000), Seed(1));
        if steps > 1 {
            let _ = writeln!(out, "step {}", step + 1);
        }
        show(&plan, &mut out);
    }
    out
}

fn snapshot(text: &str, bits: Option<&str>, interval: Option<&str>) -> Snapshot {
    let tiers = table(text, "tier").into_iter().map(|row| {
        let nodes: Vec<u16> = row[1].split(' ').map(|n| number(n) as u16).collect();
        let mut state = tier(&nodes, number(row[2]), number(row[3]));
        if let Some(mb) = row.get(4).filter(|c| !c.is_empty() && **c != "unknown") {
            state.write_throughput = Some(BytesPerSec::mb(number(mb)));
            state.throughput_source = ThroughputSource::Hardware;
        }
        if let Some(listed) = row.get(5) {
            state.unused = Bytes(state.free.get() + number(listed) * 4096);
        }
        state
    });
    let mut areas: Vec<Area> = Vec::new();
    for row in table(text, "pages") {
        let (start, count) = row[0].split_once('+').unwrap();
        let (start, flags) = (number(start), flags(row.get(4).copied().unwrap_or("")));
        let page = PageStat {
            node: number(row[1]) as u8,
            reads: Heat::from_rate(number(row[2])),
            writes: Heat::from_rate(number(row[3])),
            flags,
        };
        let pages = vec![page; number(count) as usize];
        let pid = Pid(row.get(5).map_or(1, |process| number(process)) as i32);
        match areas.last_mut().filter(|a| a.pid == pid && a.range().end == Vpn(start)) {
            Some(area) => area.pages.extend(pages),
            None => areas.push(Area { pid, start: Vpn(start), pages }),
        }
    }
    let by_cell: Vec<CellCount> = table(text, "page")
        .iter()
        .map(|row| CellCount {
            pid: Pid(1),
            vpn: Vpn(number(row[0])),
            cell: NodeId(number(row[1]) as u16),
            thread: None,
            reads: number(row[2]) as u32,
            writes: number(row[3]) as u32,
        })
        .collect();
    Snapshot {
        interval: Nanos::millis(interval.map_or(500, number)),
        page_size: Bytes(4096),
        tiers: tiers.collect(),
        areas,
        sees: TrackerVisibility {
            reads: true,
            writes: true,
            cells: !by_cell.is_empty(),
            bits: if bits == Some("exact") { BitSource::Exact } else { BitSource::Approximate },
            ..TrackerVisibility::default()
        },
        by_cell,
        shifted: false,
        filling: false,
        waited: false,
        swept: 0.0,
        at_least: false,
        move_cost: Nanos::ZERO,
        saturated: false,
        spendable: None,
        headroom: Bytes::ZERO,
        next_growth: Nanos::ZERO,
        gets_huge_pages: false,
    }
}

fn flags(words: &str) -> PageFlags {
    words.split_whitespace().fold(PageFlags::PRESENT.with(PageFlags::KNOWN), |flags, word| {
        match word {
            "referenced" => flags.with(PageFlags::REFERENCED),
            "dirty" => flags.with(PageFlags::DIRTY).with(PageFlags::REFERENCED),
            "pinned" => flags.with(PageFlags::PINNED),
            "unknown" => flags.without(PageFlags::KNOWN),
            "absent" => flags.without(PageFlags::PRESENT),
            other => panic!("no flag {other:?}"),
        }
    })
}

/// The first process is not named.
fn of(pid: Pid) -> String {
    match pid {
        Pid(1) => String::new(),
        other => format!("process {other} "),
    }
}

fn show(plan: &Plan, out: &mut String) {
    for d in &plan.decisions {
        let _ = writeln!(out, "{}", d.name);
    }
    for m in &plan.moves {
        let reason = format!("{:?}", m.reason);
        let whose = of(m.pid);
        let _ = writeln!(
            out,
            "  {whose}{:#x}+{} node {} -> {} {reason}",
            m.start.0, m.pages, m.from, m.to
        );
    }
    if plan.exchange {
        let _ = writeln!(out, "  in exchange");
    }
    for request in &plan.requests {
        let _ = match request {
            Request::Clear { nodes } => {
                let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
                writeln!(out, "  clear bits on nodes {}", nodes.join(" "))
            }
            Request::ClearPages { pid, range } => {
                writeln!(out, "  clear bits of {}{:#x}+{}", of(*pid), range.start.0, range.len())
            }
            Request::Wait(span) => writeln!(out, "  wait {span}"),
            Request::SampleByPage { range, .. } => {
                writeln!(out, "  sample by page at {:#x}+{}", range.start.0, range.len())
            }
            Request::Relax => writeln!(out, "  relax"),
            Request::IgnoreCooling => writeln!(out, "  ignore cooling"),
            Request::Idle => writeln!(out, "  idle"),
            Request::WarmUp => writeln!(out, "  warm up"),
        };
    }
    if plan.decisions.is_empty() && plan.moves.is_empty() && plan.requests.is_empty() {
        let _ = writeln!(out, "nothing");
    }
}
