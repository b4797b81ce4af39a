//! Random sequences of calls against a plain model of what must be there.
#![allow(clippy::unwrap_used)]

mod world;

use proptest::prelude::*;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use terrace_alloc::arena::fake::FakeNodes;
use terrace_types::{NodeId, Seed};
use world::{Call, World};

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![5 => 0_usize..300, 3 => 0_usize..20_000, 1 => 0_usize..400_000]
}

fn call() -> impl Strategy<Value = Call> {
    let which = 0_usize..1000;
    prop_oneof![
        1 => (prop::option::of(1_u64..4_000_000), any::<bool>())
            .prop_map(|(limit, slow)| Call::Create { limit, slow }),
        1 => which.clone().prop_map(Call::Destroy),
        20 => (which.clone(), size(), 0_u32..18, any::<bool>())
            .prop_map(|(arena, size, align, zero)| Call::Alloc { arena, size, align, zero }),
        6 => (which.clone(), size()).prop_map(|(block, size)| Call::Realloc { block, size }),
        12 => which.clone().prop_map(Call::Free),
        2 => (which.clone(), 1_usize..100_000)
            .prop_map(|(block, offset)| Call::FreeWrong { block, offset }),
        1 => (which, any::<bool>()).prop_map(|(arena, slow)| Call::Move { arena, slow }),
    ]
}

/// One for all sequences of a thread: only so many sets of devices are kept apart.
fn nodes() -> &'static FakeNodes {
    Box::leak(Box::new(FakeNodes::new(&[(NodeId(0), 1 << 20), (NodeId(1), 1 << 20)])))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn sequences_of_calls_do_what_the_model_does(calls in prop::collection::vec(call(), 1..250)) {
        static NODES: OnceLock<&FakeNodes> = OnceLock::new();
        let nodes = *NODES.get_or_init(nodes);
        nodes.forget_pages();
        let mut world = World::default();
        for call in &calls {
            world.step(call, nodes);
        }
        world.end();
    }
}

/// The call that a number stands for.
fn drawn(seed: &mut Seed) -> Call {
    let mut draw = |below: usize| {
        let (number, next) = seed.next();
        *seed = next;
        (number >> 11) as usize % below
    };
    let size = |draw: &mut dyn FnMut(usize) -> usize| match draw(9) {
        0..=4 => draw(300),
        5..=7 => draw(20_000),
        _ => draw(400_000),
    };
    match draw(430) {
        0..=4 => Call::Create {
            limit: (draw(2) == 0).then(|| 1 + draw(4_000_000) as u64),
            slow: draw(2) == 0,
        },
        5..=7 => Call::Destroy(draw(1000)),
        8..=207 => {
            let size = size(&mut draw);
            Call::Alloc { arena: draw(1000), size, align: draw(18) as u32, zero: draw(2) == 0 }
        }
        208..=267 => {
            let size = size(&mut draw);
            Call::Realloc { block: draw(1000), size }
        }
        268..=405 => Call::Free(draw(1000)),
        406..=425 => Call::FreeWrong { block: draw(1000), offset: 1 + draw(100_000) },
        _ => Call::Move { arena: draw(1000), slow: draw(2) == 0 },
    }
}

/// Long sequences in two threads at once, each beside its own model. `TERRACE_ALLOC_SECONDS` says
/// how long, `TERRACE_SEED` where it begins.
#[test]
fn long_sequences_in_threads_do_what_their_models_do() {
    let of = |name: &str, unless: u64| {
        std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(unless)
    };
    let until = Instant::now() + Duration::from_secs(of("TERRACE_ALLOC_SECONDS", 3));
    let first = of("TERRACE_SEED", 1);
    std::thread::scope(|s| {
        for thread in 0..2 {
            s.spawn(move || {
                let (nodes, mut round) = (nodes(), 0);
                while Instant::now() < until {
                    let number = first + round * 2 + thread;
                    println!("seed {number}");
                    let (mut seed, mut world) = (Seed(number), World::default());
                    nodes.forget_pages();
                    for _ in 0..5_000 {
                        world.step(&drawn(&mut seed), nodes);
                    }
                    world.end();
                    round += 1;
                }
                println!("thread {thread}: {round} sequences of 5,000 calls");
            });
        }
    });
}
