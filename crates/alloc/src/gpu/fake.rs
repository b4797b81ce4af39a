//! GPUs of any number, for tests: free memory, blocks and their advice as the driver keeps them, no
//! memory behind.

use super::{CudaError, Device, Gpus, Home};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};
use terrace_types::{Bytes, NodeId};

const PAGE: usize = 4096;

/// What a page was advised.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Advised {
    pub home: Option<Home>,
    pub reach: BTreeSet<Home>,
    /// The GPU that it was brought to.
    pub on: Option<u16>,
}

#[derive(Debug, Default)]
struct State {
    free: Vec<u64>,
    blocks: BTreeMap<usize, usize>,
    pages: BTreeMap<usize, Advised>,
    next: usize,
    /// The next calls of these names fail.
    broken: BTreeSet<&'static str>,
    /// Calls that change something, in order.
    calls: Vec<String>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct FakeGpus {
    devices: Vec<Device>,
    state: Mutex<State>,
}

impl FakeGpus {
    /// GPUs of these sizes, all of it free, each attached to the node of its number; neighbours (0
    /// and 1, 2 and 3) are peers.
    pub fn with_sizes(sizes: &[Bytes]) -> Self {
        let device = |(at, total): (usize, &Bytes)| Device {
            name: format!("Fake {at}"),
            total: *total,
            node: Some(NodeId(at as u16)),
            places: true,
            peers: Some(at as u16 ^ 1)
                .filter(|p| usize::from(*p) < sizes.len())
                .into_iter()
                .collect(),
        };
        let free = sizes.iter().map(|b| b.get()).collect();
        let state = State { free, next: 1 << 44, ..State::default() };
        Self { devices: sizes.iter().enumerate().map(device).collect(), state: Mutex::new(state) }
    }

    /// The GPU cannot be placed on.
    pub fn without_placing(mut self, gpu: u16) -> Self {
        self.devices[usize::from(gpu)].places = false;
        self
    }

    pub fn at_node(mut self, gpu: u16, node: Option<u16>) -> Self {
        self.devices[usize::from(gpu)].node = node.map(NodeId);
        self
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Another process takes so much.
    pub fn take(&self, gpu: u16, bytes: Bytes) {
        self.state().free[usize::from(gpu)] -= bytes.get();
    }

    pub fn break_call(&self, call: &'static str) {
        self.state().broken.insert(call);
    }

    /// What a page's advice is.
    pub fn advised(&self, at: usize) -> Advised {
        self.state().pages.get(&at).cloned().unwrap_or_default()
    }

    /// Bytes of `part` that are at home there.
    pub fn at_home(&self, part: Range<usize>, home: Option<Home>) -> u64 {
        let state = self.state();
        (state.pages.range(part).filter(|(_, p)| p.home == home).count() * PAGE) as u64
    }

    /// Bytes that were brought to a GPU and not given back.
    pub fn brought(&self, gpu: u16) -> u64 {
        (self.state().pages.values().filter(|p| p.on == Some(gpu)).count() * PAGE) as u64
    }

    pub fn blocks(&self) -> usize {
        self.state().blocks.len()
    }

    pub fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.state().calls)
    }
}

impl State {
    fn called(&mut self, call: &'static str, text: String) -> Result<(), CudaError> {
        if self.broken.remove(call) {
            return Err(CudaError::Failed {
                call,
                target: text,
                name: "CUDA_ERROR_UNKNOWN".to_owned(),
                code: 999,
            });
        }
        self.calls.push(format!("{call} {text}"));
        Ok(())
    }

    fn block(&self, part: &Range<usize>) -> Result<usize, CudaError> {
        let block =
            self.blocks.range(..=part.start).next_back().filter(|(_, end)| part.end <= **end);
        block.map(|(start, _)| *start).ok_or(CudaError::NotOurs { address: part.start })
    }

    /// `part` as an offset in its block, for texts that do not depend on addresses.
    fn shown(&self, part: &Range<usize>) -> Result<String, CudaError> {
        let block = self.block(part)?;
        Ok(format!("{}..{}", (part.start - block) / PAGE, (part.end - block) / PAGE))
    }
}

impl Gpus for FakeGpus {
    fn devices(&self) -> &[Device] {
        &self.devices
    }

    fn free(&self, gpu: u16) -> Result<Bytes, CudaError> {
        let mut state = self.state();
        if state.broken.remove("free") {
            return Err(CudaError::Forked);
        }
        Ok(Bytes(state.free[usize::from(gpu)]))
    }

    fn allocate(&self, gpu: u16, len: Bytes) -> Result<usize, CudaError> {
        let mut state = self.state();
        state.called("allocate", format!("{} on {gpu}", len.get() as usize / PAGE))?;
        let at = state.next;
        let end = at + len.get() as usize;
        state.next = end + PAGE;
        state.blocks.insert(at, end);
        state.pages.extend((at..end).step_by(PAGE).map(|p| (p, Advised::default())));
        Ok(at)
    }

    fn release(&self, address: usize) -> Result<(), CudaError> {
        let mut state = self.state();
        let end = state.blocks.remove(&address).ok_or(CudaError::NotOurs { address })?;
        let gone: Vec<(usize, Advised)> =
            state.pages.range(address..end).map(|(a, p)| (*a, p.clone())).collect();
        for (at, page) in gone {
            state.pages.remove(&at);
            if let Some(gpu) = page.on {
                state.free[usize::from(gpu)] += PAGE as u64;
            }
        }
        state.called("release", String::new())
    }

    fn prefer(&self, part: &Range<usize>, home: Option<Home>) -> Result<(), CudaError> {
        let mut state = self.state();
        let shown = state.shown(part)?;
        state.called(
            "prefer",
            format!("{shown} {}", home.map_or("nothing".to_owned(), |h| h.to_string())),
        )?;
        state.pages.range_mut(part.clone()).for_each(|(_, p)| p.home = home);
        Ok(())
    }

    fn reach(&self, part: &Range<usize>, from: Home, on: bool) -> Result<(), CudaError> {
        let mut state = self.state();
        let shown = state.shown(part)?;
        state.called("reach", format!("{shown} from {from} {on}"))?;
        for (_, page) in state.pages.range_mut(part.clone()) {
            let _was_there = if on { page.reach.insert(from) } else { page.reach.remove(&from) };
        }
        Ok(())
    }

    fn bring(&self, part: &Range<usize>, to: Home) -> Result<(), CudaError> {
        let mut state = self.state();
        let shown = state.shown(part)?;
        state.called("bring", format!("{shown} to {to}"))?;
        let State { pages, free, .. } = &mut *state;
        for (_, page) in pages.range_mut(part.clone()) {
            let on = if let Home::Gpu(gpu) = to { Some(gpu) } else { None };
            if let Some(from) = std::mem::replace(&mut page.on, on) {
                free[usize::from(from)] += PAGE as u64;
            }
            if let Some(gpu) = on {
                // A driver would push others' pages out; the caller must not let it come to that.
                free[usize::from(gpu)] =
                    free[usize::from(gpu)].checked_sub(PAGE as u64).expect("space on the GPU");
            }
        }
        Ok(())
    }
}
