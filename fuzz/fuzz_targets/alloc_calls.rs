//! Bytes as a sequence of calls of arenas, beside a plain model of them: the one that the tests
//! use.
#![no_main]

#[path = "../../crates/alloc/tests/world/mod.rs"]
mod world;

use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;
use terrace_alloc::arena::fake::FakeNodes;
use terrace_types::NodeId;
use world::{Call, World};

/// Takes numbers from the front; zeros at the end.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn draw(&mut self, bytes: usize) -> usize {
        let (now, later) = self.0.split_at(bytes.min(self.0.len()));
        self.0 = later;
        now.iter().fold(0, |number, byte| number << 8 | usize::from(*byte))
    }

    fn size(&mut self) -> usize {
        match self.draw(1) % 8 {
            0..=4 => self.draw(1),
            5 | 6 => self.draw(2) % 20_000,
            _ => self.draw(3) % 400_000,
        }
    }

    fn call(&mut self) -> Call {
        match self.draw(1) % 16 {
            0 => Call::Create {
                limit: Some(self.draw(3) as u64).filter(|l| *l > 0),
                slow: self.draw(1) % 2 == 0,
            },
            1 => Call::Destroy(self.draw(1)),
            2..=7 => {
                let size = self.size();
                let flags = self.draw(1);
                Call::Alloc {
                    arena: self.draw(1),
                    size,
                    align: flags as u32 % 18,
                    zero: flags >= 128,
                }
            }
            8 | 9 => {
                let size = self.size();
                Call::Realloc { block: self.draw(1), size }
            }
            10..=13 => Call::Free(self.draw(1)),
            14 => Call::FreeWrong { block: self.draw(1), offset: 1 + self.draw(2) },
            _ => Call::Move { arena: self.draw(1), slow: self.draw(1) % 2 == 0 },
        }
    }
}

fuzz_target!(|data: &[u8]| {
    static NODES: OnceLock<FakeNodes> = OnceLock::new();
    let nodes = NODES.get_or_init(|| FakeNodes::new(&[(NodeId(0), 1 << 24), (NodeId(1), 1 << 24)]));
    nodes.forget_pages();
    let mut bytes = Bytes(data);
    let mut world = World::default();
    while !bytes.0.is_empty() {
        let call = bytes.call();
        world.step(&call, nodes);
    }
    world.end();
});
