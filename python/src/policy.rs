//! A policy written in Python: a snapshot as columns for it, its moves as a plan.

use crate::failed;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use terrace_terrace::policy::place::{CustomPolicy, PolicyNeeds};
use terrace_terrace::types::{
    Decision, Move, MoveReason, Nanos, PageFlags, Pid, Plan, Request, Seed, Snapshot, Tick, Vpn,
};

/// What a call of the function gives: pages of each move as native 64-bit numbers with the rank of
/// the tier that they go to, a sentence why, and seconds until the next call at least.
type Answer = (Vec<(Vec<u8>, usize)>, String, Option<f64>);

/// The first exception that the function raised.
#[derive(Clone, Default)]
pub struct Failure(Arc<Mutex<Option<PyErr>>>);

impl Failure {
    /// Takes it.
    pub fn take(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn keep(&self, error: PyErr) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }

    fn is_some(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

/// The policy of this function, which is shown one dictionary a step. Once it has raised an
/// exception it is not called again and nothing more is moved.
pub fn policy(function: Py<PyAny>) -> (CustomPolicy, Failure) {
    let failure = Failure::default();
    let kept = failure.clone();
    let needs = PolicyNeeds { heat: true, writes: true, ..PolicyNeeds::default() };
    let step = move |snapshot: &Snapshot, now: Tick, _seed: Seed| {
        if kept.is_some() {
            return Plan::default();
        }
        let plan = Python::attach(|py| {
            let answer = function.bind(py).call1((shown(py, snapshot, now)?,))?;
            plan(snapshot, &answer.extract()?)
        });
        plan.unwrap_or_else(|error| {
            kept.keep(error);
            Plan::default()
        })
    };
    (CustomPolicy::new(needs, step), failure)
}

/// What of a snapshot a function is shown: pages that may be moved, a huge page once.
fn shown<'py>(py: Python<'py>, snapshot: &Snapshot, now: Tick) -> PyResult<Bound<'py, PyDict>> {
    let (mut page, mut pages, mut tier) = (Vec::new(), Vec::new(), Vec::new());
    let (mut reads, mut writes, mut known) = (Vec::new(), Vec::new(), Vec::new());
    for area in &snapshot.areas {
        let mut units = (area.start.0..).zip(&area.pages).peekable();
        while let Some((vpn, stat)) = units.next() {
            let rank = snapshot.rank_of(stat.node());
            let (Some(rank), true) = (rank, stat.movable()) else { continue };
            let mut count = 1_u32;
            while units.next_if(|(_, s)| s.flags.has(PageFlags::HUGE_TAIL)).is_some() {
                count += 1;
            }
            page.extend(vpn.to_ne_bytes());
            pages.extend(count.to_ne_bytes());
            tier.extend((rank as u32).to_ne_bytes());
            reads.extend(stat.reads.rate().to_ne_bytes());
            writes.extend(stat.writes.rate().to_ne_bytes());
            known.push(u8::from(stat.flags.has(PageFlags::KNOWN)));
        }
    }
    let tiers: Vec<BTreeMap<&str, u64>> = snapshot
        .tiers
        .iter()
        .map(|t| [("capacity_bytes", t.capacity.get()), ("free_bytes", t.free.get())].into())
        .collect();
    let dict = PyDict::new(py);
    dict.set_item("time_s", now.0 as f64 / 1e9)?;
    dict.set_item("window_s", snapshot.interval.as_secs_f64())?;
    dict.set_item("page_bytes", snapshot.page_size.get())?;
    dict.set_item("tiers", tiers)?;
    let columns = [
        ("page", page),
        ("pages", pages),
        ("tier", tier),
        ("reads_per_s", reads),
        ("writes_per_s", writes),
        ("known", known),
    ];
    for (name, bytes) in columns {
        dict.set_item(name, PyBytes::new(py, &bytes))?;
    }
    Ok(dict)
}

/// The plan of an answer: runs of pages that follow each other and lie on one node.
fn plan(snapshot: &Snapshot, (moves, why, wait): &Answer) -> PyResult<Plan> {
    let wrong = |why: String| failed("follow", "the policy", &why);
    let pid = snapshot.areas.first().map_or(Pid(0), |area| area.pid);
    let mut all: Vec<Move> = Vec::new();
    for (bytes, rank) in moves {
        let tier = snapshot.tiers.get(*rank).ok_or_else(|| {
            wrong(format!("there is no tier {rank}; there are {}", snapshot.tiers.len()))
        })?;
        let to = *tier.nodes.first().ok_or_else(|| wrong(format!("tier {rank} has no node")))?;
        for number in bytes.chunks_exact(8).filter_map(|b| b.try_into().ok()) {
            let vpn = Vpn(u64::from_ne_bytes(number));
            let stat = snapshot.page(pid, vpn).filter(|page| page.movable()).ok_or_else(|| {
                wrong(format!("page {:#x} cannot be moved; give pages of the snapshot", vpn.0))
            })?;
            let from = stat.node();
            if tier.nodes.contains(&from) {
                continue;
            }
            let pages = huge_pages(snapshot, pid, vpn);
            let reason = match snapshot.rank_of(from) {
                Some(now) if now < *rank => MoveReason::Cold,
                _ => MoveReason::Hot,
            };
            match all.last_mut() {
                Some(last)
                    if last.range().end == vpn
                        && (last.from, last.to, last.reason) == (from, to, reason) =>
                {
                    last.pages += pages;
                }
                _ => all.push(Move { pid, start: vpn, pages, from, to, reason }),
            }
        }
    }
    let name = if all.is_empty() { "hold" } else { "move" };
    let decision =
        Decision { name: name.to_owned(), why: why.clone(), gain_ns_per_s: 0, cost_ns: 0 };
    let wait = wait.filter(|s| s.is_finite() && *s > 0.0);
    Ok(Plan {
        moves: all,
        requests: wait.map(|s| Request::Wait(Nanos((s * 1e9) as u64))).into_iter().collect(),
        decisions: vec![decision],
        ..Plan::default()
    })
}

/// Base pages that move with a page.
fn huge_pages(snapshot: &Snapshot, pid: Pid, vpn: Vpn) -> u32 {
    let tail = |next: &u64| {
        snapshot.page(pid, Vpn(*next)).is_some_and(|page| page.flags.has(PageFlags::HUGE_TAIL))
    };
    1 + (vpn.0 + 1..).take_while(tail).count() as u32
}
