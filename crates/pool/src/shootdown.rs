//! Pages of files that several hosts have mapped move between pools: who is told, who acknowledges,
//! and how long that takes.
//!
//! The first host that runs copies the page. It asks the manager to have translations dropped; the
//! manager tells every other host that has the file mapped, collects acknowledgements, and answers
//! ("Exploring Allocation Policies in Disaggregated Non-Volatile Memories", MCHPC 2018, section
//! 3.1). A host that touches the page meanwhile waits.

use crate::manager::{MemoryManager, PoolFrame};
use crate::system::{PoolDescription, SharedFileEntry, SystemDescription};
use serde::Serialize;
use std::sync::Arc;
use terrace_sim::world::ShootdownMode;
use terrace_types::BytesPerSec;

const PAGE: u64 = 4096;
/// Picoseconds in a second.
const PS_PER_S: u64 = 1_000_000_000_000;
/// Picoseconds in a millisecond.
const PS_PER_MS: u64 = 1_000_000_000;
/// Pages that one shootdown is for at most, as `move_pages` has it
/// (`NR_MAX_BATCHED_MIGRATION`, mm/migrate.c).
const MOST_TOGETHER: u64 = 512;

/// What messages between hosts take for a shootdown, picoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShootdownLatencies {
    /// From a host to the manager, and back.
    pub manager_ps: u64,
    /// The manager's time for a message; 0: none.
    pub service_ps: u64,
    /// From an interrupt until a core has dropped its translations.
    pub handler_ps: u64,
}

/// What telling other hosts takes and sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShootdownRound {
    /// Until the host that moves pages may go on, picoseconds.
    pub takes_ps: u64,
    /// Messages, acknowledgements among them.
    pub messages: u64,
    /// Acknowledgements of other hosts.
    pub acknowledgements: u64,
}

impl ShootdownLatencies {
    /// Translations of `pages` pages are dropped on `others` other hosts. Nothing where there are
    /// none.
    #[must_use]
    pub fn round(&self, others: u64, pages: u64, mode: ShootdownMode) -> ShootdownRound {
        let rounds = match mode {
            _ if others == 0 || pages == 0 => return ShootdownRound::default(),
            ShootdownMode::PerPage => pages,
            ShootdownMode::Batched | ShootdownMode::EarlyAcknowledge => {
                pages.div_ceil(MOST_TOGETHER)
            }
        };
        let handler_ps = match mode {
            ShootdownMode::EarlyAcknowledge => 0,
            ShootdownMode::Batched | ShootdownMode::PerPage => self.handler_ps,
        };
        // To the manager, out to the last host, back from it, and the answer. The manager takes the
        // request, sends one message after the other and takes the last acknowledgement.
        let one = 4 * self.manager_ps + (others + 2) * self.service_ps + handler_ps;
        ShootdownRound {
            takes_ps: rounds * one,
            messages: rounds * (2 * others + 2),
            acknowledgements: rounds * others,
        }
    }
}

/// A page of a file that moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileMove {
    pub file: u32,
    pub page: u64,
    pub to: PoolFrame,
}

/// What a host is told of pages that move.
#[derive(Debug, Clone, Default)]
pub(crate) struct MoveOrder {
    pub moves: Arc<Vec<FileMove>>,
    /// Of the host that copies: how long it waits for the others, picoseconds.
    pub copies: Option<u64>,
    /// How long nobody may touch the pages, picoseconds.
    pub wait_ps: u64,
}

/// What became of pages of files that moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct FileMoveTotals {
    /// Pages.
    pub pages: u64,
    /// Messages between hosts and manager.
    pub messages: u64,
    /// Acknowledgements that are due, and those that hosts sent.
    pub acknowledgements_due: u64,
    /// See there.
    pub acknowledgements: u64,
    /// Time that hosts waited for acknowledgements before they went on, nanoseconds.
    pub waited_ns: u64,
}

/// A file whose pages move.
#[derive(Debug, Clone)]
struct MovingFile {
    id: u32,
    moves_per_ms: u64,
    /// Thousand-millionths of a page that may move now.
    credit: u64,
    /// Where the next page is looked for.
    next: usize,
    /// How long copying the last pages and telling of them still takes, picoseconds: the next ones
    /// come after that.
    busy_ps: u64,
}

/// Chooses pages of files that move from pool to pool.
#[derive(Debug, Clone)]
pub(crate) struct FileMover {
    files: Vec<MovingFile>,
    latencies: ShootdownLatencies,
    /// What reading a page of each pool takes, and writing it, picoseconds.
    copy_ps: Vec<(u64, u64)>,
    pub totals: FileMoveTotals,
}

impl FileMover {
    /// Of the files of `system`, which lie in `pools`; a core's handler takes `handler_ps`.
    pub fn new(system: &SystemDescription, pools: &[PoolDescription], handler_ps: u64) -> Self {
        let mut files: Vec<MovingFile> = Vec::new();
        let moving = |file: &SharedFileEntry| {
            let moves_per_ms = u64::from(file.moves_per_ms?);
            Some(MovingFile { id: file.id, moves_per_ms, credit: 0, next: 0, busy_ps: 0 })
        };
        for file in system.files.iter().filter_map(moving) {
            if files.iter().all(|known| known.id != file.id) {
                files.push(file);
            }
        }
        let latencies = ShootdownLatencies {
            manager_ps: system.manager.latency_ns * 1000,
            service_ps: system.manager.requests_per_us.map_or(0, |rate| 1_000_000 / rate),
            handler_ps,
        };
        let page_ps = |rate: BytesPerSec| PAGE * PS_PER_S / rate.get().max(1);
        let copy_ps = pools.iter().map(|pool| {
            let (read, write) = (pool.read_bandwidth, pool.write_bandwidth);
            (page_ps(read), page_ps(write))
        });
        let copy_ps = copy_ps.collect();
        Self { files, latencies, copy_ps, totals: FileMoveTotals::default() }
    }

    /// What hosts are told at the end of a window: by host, where it has a page that moves.
    /// `waits_ps`: what requests wait at each pool. `modes` are those of hosts that run.
    pub fn plan(
        &mut self,
        window_ps: u64,
        waits_ps: &[u64],
        manager: &mut MemoryManager,
        modes: &[Option<ShootdownMode>],
    ) -> Vec<MoveOrder> {
        let mut orders = vec![MoveOrder::default(); modes.len()];
        let pools = || waits_ps.iter().enumerate();
        let (Some((from, most)), Some((to, least))) =
            (pools().max_by_key(|(_, wait)| **wait), pools().min_by_key(|(_, wait)| **wait))
        else {
            return orders;
        };
        for file in &mut self.files {
            // Who copies has time for its program between two rounds.
            if file.busy_ps > 0 {
                file.busy_ps = file.busy_ps.saturating_sub(window_ps);
                continue;
            }
            // What could not move is not caught up with: many pages at once overshoot, since waits
            // follow a window later.
            let gained = (file.moves_per_ms * window_ps).min(MOST_TOGETHER * PS_PER_MS);
            file.credit = (file.credit + gained).min(gained.max(PS_PER_MS));
            // Between equal pools nothing is gained.
            if most == least || file.credit < PS_PER_MS {
                continue;
            }
            let moves = file.choose(from, to, manager);
            let hosts: Vec<usize> = manager
                .files()
                .filter(|(id, ..)| *id == file.id)
                .flat_map(|(_, hosts, _)| hosts.iter().copied())
                .filter(|host| modes[*host].is_some())
                .collect();
            let Some(mode) = hosts.first().and_then(|first| modes[*first]) else { continue };
            let (others, pages) = (hosts.len() as u64 - 1, moves.len() as u64);
            let round = self.latencies.round(others, pages, mode);
            file.busy_ps = round.takes_ps + pages * self.copy_ps[from].0.max(self.copy_ps[to].1);
            let sum = &mut self.totals;
            sum.pages += pages;
            sum.messages += round.messages;
            sum.acknowledgements_due += round.acknowledgements;
            sum.waited_ns += round.takes_ps / 1000;
            let moves = Arc::new(moves);
            for (index, host) in hosts.into_iter().enumerate() {
                orders[host] = MoveOrder {
                    moves: moves.clone(),
                    copies: (index == 0).then_some(round.takes_ps),
                    wait_ps: round.takes_ps,
                };
            }
        }
        orders
    }
}

impl MovingFile {
    /// The next pages that lie in the pool `from`, as many as may move now.
    fn choose(&mut self, from: usize, to: usize, manager: &mut MemoryManager) -> Vec<FileMove> {
        let of = |manager: &MemoryManager, id: u32| -> Vec<PoolFrame> {
            let found = manager.files().find(|(known, ..)| *known == id);
            found.map_or(Vec::new(), |(_, _, frames)| frames.to_vec())
        };
        let frames = of(manager, self.id);
        let mut moves = Vec::new();
        for _ in 0..frames.len() {
            if self.credit < PS_PER_MS {
                break;
            }
            let page = self.next % frames.len();
            self.next = page + 1;
            if frames[page].pool != from {
                continue;
            }
            let Some(to) = manager.move_file_page(self.id, page as u64, to) else { break };
            self.credit -= PS_PER_MS;
            moves.push(FileMove { file: self.id, page: page as u64, to });
        }
        moves
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_notified_and_answer_through_the_manager() {
        let latencies = ShootdownLatencies { manager_ps: 2_000, service_ps: 10, handler_ps: 1_000 };
        let round = |others, pages, mode| latencies.round(others, pages, mode);
        assert_eq!(round(0, 5, ShootdownMode::Batched), ShootdownRound::default());
        // Four trips, a handler, and the manager's request, three messages and last answer.
        let expected = ShootdownRound { takes_ps: 9_050, messages: 8, acknowledgements: 3 };
        assert_eq!(round(3, 5, ShootdownMode::Batched), expected);
        let early = round(3, 5, ShootdownMode::EarlyAcknowledge);
        assert_eq!(early, ShootdownRound { takes_ps: 8_050, ..expected });
        let each = ShootdownRound { takes_ps: 45_250, messages: 40, acknowledgements: 15 };
        assert_eq!(round(3, 5, ShootdownMode::PerPage), each);
        assert_eq!(round(3, 513, ShootdownMode::Batched).messages, 16, "two groups");
    }

    #[test]
    fn pages_move_from_the_busiest_pool_to_the_idlest_at_the_rate_of_the_file() {
        let text = crate::system::system_preset_text("opal").unwrap();
        let mut system = SystemDescription::from_toml(text, "opal").unwrap();
        system.files = vec![SharedFileEntry {
            id: 1,
            size: "64 KiB".to_owned(),
            offset: None,
            hosts: Vec::new(),
            trespassers: Vec::new(),
            moves_per_ms: Some(400),
        }];
        let mut manager = MemoryManager::new(&[100, 100], 3);
        for host in 0..3 {
            manager.map_file(1, 16, host).unwrap();
        }
        system.pools[0].count = 2;
        let mut mover = FileMover::new(&system, &system.list_pools("opal").unwrap(), 1_000_000);
        let modes = [None, Some(ShootdownMode::Batched), Some(ShootdownMode::Batched)];
        // Four pages in a window of 10 us.
        let window_ps = 10_000_000;
        let orders = mover.plan(window_ps, &[900, 100], &mut manager, &modes);
        assert_eq!(orders[1].moves.iter().map(|m| m.page).collect::<Vec<_>>(), [0, 2, 4, 6]);
        assert!(orders[0].moves.is_empty(), "it has ended");
        assert_eq!((orders[1].copies.is_some(), orders[2].copies), (true, None));
        assert_eq!((manager.free(0), manager.free(1)), (96, 88));
        assert_eq!((mover.totals.pages, mover.totals.acknowledgements_due), (4, 1));
        let busy = mover.plan(window_ps, &[900, 100], &mut manager, &modes);
        // To the manager and back twice, a handler: 9 us; and four pages at 1.02 GB/s: 16 us.
        assert!(busy.iter().all(|order| order.moves.is_empty()), "the first ones take 25 us");
        let left = mover.files[0].busy_ps;
        assert!((15_000_000..15_200_000).contains(&left), "{left}: a window of 10 us has passed");
        let still = mover.plan(window_ps, &[500, 500], &mut manager, &modes);
        assert!(still.iter().all(|order| order.moves.is_empty()), "equal pools");
    }
}
