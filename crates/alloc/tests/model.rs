//! Random sequences of calls against a plain model of what must be there.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use std::collections::BTreeMap;
use terrace_alloc::arena::fake::FakeNodes;
use terrace_alloc::arena::*;
use terrace_types::{Bytes, NodeId};

#[derive(Debug, Clone)]
enum Call {
    Create { limit: Option<u64>, slow: bool },
    Destroy(usize),
    Alloc { arena: usize, size: usize, align: u32, zero: bool },
    Realloc { block: usize, size: usize },
    Free(usize),
    FreeWrong { block: usize, offset: usize },
    Move { arena: usize, slow: bool },
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![5 => 0_usize..300, 3 => 0_usize..20_000, 1 => 0_usize..400_000]
}

fn call() -> impl Strategy<Value = Call> {
    let which = 0_usize..1000;
    prop_oneof![
        1 => (prop::option::of(1_u64..4_000_000), any::<bool>()).prop_map(|(limit, slow)| Call::Create { limit, slow }),
        1 => which.clone().prop_map(Call::Destroy),
        20 => (which.clone(), size(), 0_u32..18, any::<bool>())
            .prop_map(|(arena, size, align, zero)| Call::Alloc { arena, size, align, zero }),
        6 => (which.clone(), size()).prop_map(|(block, size)| Call::Realloc { block, size }),
        12 => which.clone().prop_map(Call::Free),
        2 => (which.clone(), 1_usize..100_000).prop_map(|(block, offset)| Call::FreeWrong { block, offset }),
        1 => (which, any::<bool>()).prop_map(|(arena, slow)| Call::Move { arena, slow }),
    ]
}

/// A block as the model has it: bytes, what they are, its arena.
#[derive(Debug, Clone, Copy)]
struct Block {
    size: usize,
    fill: u8,
    arena: usize,
}

#[derive(Default)]
struct World {
    arenas: Vec<(Arena, Option<u64>)>,
    blocks: BTreeMap<usize, Block>,
    calls: u8,
}

impl World {
    fn pick_block(&self, number: usize) -> Option<(usize, Block)> {
        self.blocks.iter().nth(number % self.blocks.len().max(1)).map(|(at, block)| (*at, *block))
    }

    fn add(&mut self, at: usize, size: usize, arena: usize) {
        let before = self.blocks.range(..=at).next_back();
        assert!(before.is_none_or(|(start, b)| start + b.size.max(1) <= at), "overlaps the block before");
        let after = self.blocks.range(at..).next();
        assert!(after.is_none_or(|(start, _)| at + size.max(1) <= *start), "overlaps the block behind");
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

    /// Whether a refusal for want of room may be right.
    fn may_be_full(&self, arena: usize, error: AllocError) {
        assert_eq!(error, AllocError::Limit);
        assert!(self.arenas[arena].1.is_some(), "an arena without limit was full");
    }

    fn step(&mut self, call: &Call, nodes: &'static FakeNodes) {
        match *call {
            Call::Create { limit, slow } => {
                let devices = Devices::Only(vec![NodeId(u16::from(slow))]);
                let spec = Spec { limit: limit.map(Bytes), devices, nodes, ..Spec::default() };
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
                let got = if zero { of.calloc(size, 1) } else { of.alloc_aligned(size, 1 << align) };
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
                assert!(residency.nodes.keys().all(|n| *n == node), "{residency:?} is not all on {node}");
            }
            Call::Destroy(_) | Call::Alloc { .. } | Call::Move { .. } => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn sequences_of_calls_do_what_the_model_does(calls in prop::collection::vec(call(), 1..250)) {
        let nodes: &'static FakeNodes =
            Box::leak(Box::new(FakeNodes::new(&[(NodeId(0), 1 << 20), (NodeId(1), 1 << 20)])));
        let mut world = World::default();
        for call in &calls {
            world.step(call, nodes);
        }
        for (at, block) in &world.blocks {
            World::check(*at, block.size, block.fill);
        }
        for (n, (arena, _)) in world.arenas.iter().enumerate() {
            let blocks = world.blocks.values().filter(|b| b.arena == n).count() as u64;
            assert_eq!(arena.stats().unwrap().blocks, blocks);
        }
        for (arena, _) in world.arenas {
            // SAFETY: the model is done with the blocks.
            unsafe { arena.destroy() }.unwrap();
        }
    }
}
