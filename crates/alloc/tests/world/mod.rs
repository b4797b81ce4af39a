//! A plain model of arenas: blocks, their bytes, their arenas. Used by the model test, the soak and
//! a fuzz target.

use std::collections::BTreeMap;
use terrace_alloc::arena::fake::FakeNodes;
use terrace_alloc::arena::*;
use terrace_types::{Bytes, NodeId};

/// One call; numbers are taken modulo what there is.
#[derive(Debug, Clone)]
pub enum Call {
    Create { limit: Option<u64>, slow: bool },
    Destroy(usize),
    Alloc { arena: usize, size: usize, align: u32, zero: bool },
    Realloc { block: usize, size: usize },
    Free(usize),
    FreeWrong { block: usize, offset: usize },
    Move { arena: usize, slow: bool },
}

/// A block as the model has it: bytes, what they are, its arena.
#[derive(Debug, Clone, Copy)]
pub struct Block {
    pub size: usize,
    pub fill: u8,
    pub arena: usize,
}

/// What must be there.
#[derive(Default)]
pub struct World {
    pub arenas: Vec<(Arena, Option<u64>)>,
    pub blocks: BTreeMap<usize, Block>,
    calls: u8,
}

impl World {
    fn pick_block(&self, number: usize) -> Option<(usize, Block)> {
        self.blocks.iter().nth(number % self.blocks.len().max(1)).map(|(at, block)| (*at, *block))
    }

    fn add(&mut self, at: usize, size: usize, arena: usize) {
        let before = self.blocks.range(..=at).next_back();
        assert!(
            before.is_none_or(|(start, b)| start + b.size.max(1) <= at),
            "overlaps the block before"
        );
        let after = self.blocks.range(at..).next();
        assert!(
            after.is_none_or(|(start, _)| at + size.max(1) <= *start),
            "overlaps the block behind"
        );
        assert_eq!(lookup(at as *const u8), Some(self.arenas[arena].0));
        assert!(usable_size(at as *const u8).unwrap() >= size);
        self.calls = self.calls.wrapping_add(1);
        // SAFETY: a fresh block of `size` bytes.
        unsafe { (at as *mut u8).write_bytes(self.calls, size) };
        self.blocks.insert(at, Block { size, fill: self.calls, arena });
    }

    fn check(at: usize, size: usize, fill: u8) {
        // SAFETY: a block of at least `size` bytes, all written.
        let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, size) };
        assert!(bytes.iter().all(|b| *b == fill), "content changed");
    }

    /// Whether a refusal for want of space may be right.
    fn may_be_full(&self, arena: usize, error: ArenaAllocError) {
        assert_eq!(error, ArenaAllocError::Limit);
        assert!(self.arenas[arena].1.is_some(), "an arena without limit was full");
    }

    /// Makes one call, of the arenas and of the model.
    pub fn step(&mut self, call: &Call, nodes: &'static FakeNodes) {
        match *call {
            Call::Create { limit, slow } => {
                let devices = Devices::Only(vec![NodeId(u16::from(slow))]);
                let spec =
                    ArenaSpec { limit: limit.map(Bytes), devices, nodes, ..ArenaSpec::default() };
                self.arenas.push((Arena::create(&spec).unwrap(), limit));
            }
            Call::Destroy(arena) if self.arenas.len() > 1 => {
                let (arena, _) = self.arenas.swap_remove(arena % self.arenas.len());
                let moved = self.arenas.len();
                self.blocks.retain(|at, _| lookup(*at as *const u8) != Some(arena));
                // SAFETY: the model forgot the arena's blocks.
                unsafe { arena.destroy() }.unwrap();
                for (at, block) in &mut self.blocks {
                    let of = lookup(*at as *const u8).unwrap();
                    block.arena = self.arenas.iter().position(|(a, _)| *a == of).unwrap();
                    assert!(block.arena < moved);
                }
            }
            Call::Alloc { arena, size, align, zero } if !self.arenas.is_empty() => {
                let arena = arena % self.arenas.len();
                let of = self.arenas[arena].0;
                let got =
                    if zero { of.calloc(size, 1) } else { of.alloc_aligned(size, 1 << align) };
                match got {
                    Ok(block) => {
                        let at = block.as_ptr() as usize;
                        assert_eq!(at % if zero { 16 } else { 1 << align }, 0);
                        if zero {
                            Self::check(at, size, 0);
                        }
                        self.add(at, size, arena);
                    }
                    Err(error) => self.may_be_full(arena, error),
                }
            }
            Call::Realloc { block, size } => {
                let Some((at, block)) = self.pick_block(block) else { return };
                // SAFETY: the model's own block.
                match unsafe { realloc(at as *mut u8, size) } {
                    Ok(new) => {
                        Self::check(new.as_ptr() as usize, size.min(block.size), block.fill);
                        self.blocks.remove(&at);
                        self.add(new.as_ptr() as usize, size, block.arena);
                    }
                    Err(ReallocError::Alloc(error)) => self.may_be_full(block.arena, error),
                    Err(error) => panic!("{error}"),
                }
            }
            Call::Free(block) => {
                let Some((at, block)) = self.pick_block(block) else { return };
                Self::check(at, block.size, block.fill);
                self.blocks.remove(&at);
                // SAFETY: the model's own block; the second time it must be refused.
                unsafe {
                    assert_eq!(free(at as *mut u8), Ok(()));
                    assert_eq!(free(at as *mut u8), Err(FreeError::NotAllocated));
                }
            }
            Call::FreeWrong { block, offset } => {
                let Some((at, _)) = self.pick_block(block) else { return };
                if !self.blocks.contains_key(&(at + offset)) {
                    // SAFETY: no block begins there, so it must be refused.
                    assert!(unsafe { free((at + offset) as *mut u8) }.is_err());
                }
            }
            Call::Move { arena, slow } if !self.arenas.is_empty() => {
                let arena = self.arenas[arena % self.arenas.len()].0;
                let node = NodeId(u16::from(slow));
                arena.set_device(&Devices::Only(vec![node]), Strictness::Strict).unwrap();
                let residency = arena.residency().unwrap();
                assert!(
                    residency.nodes.keys().all(|n| *n == node),
                    "{residency:?} is not all on {node}"
                );
            }
            Call::Destroy(_) | Call::Alloc { .. } | Call::Move { .. } => {}
        }
    }

    /// Holds all that is left against the arenas, and ends them.
    pub fn end(self) {
        for (at, block) in &self.blocks {
            Self::check(*at, block.size, block.fill);
        }
        for (n, (arena, _)) in self.arenas.iter().enumerate() {
            let blocks = self.blocks.values().filter(|b| b.arena == n).count() as u64;
            assert_eq!(arena.stats().unwrap().blocks, blocks);
        }
        for (arena, _) in self.arenas {
            // SAFETY: the model is done with the blocks.
            unsafe { arena.destroy() }.unwrap();
        }
    }
}
