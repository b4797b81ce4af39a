//! The passes that are picked are nearly as fast on the machine as any others.
#![allow(clippy::unwrap_used)]

use terrace_migratory::simulation::{simulate, SimulationLimits};
use terrace_migratory::MigratoryMachine;
use terrace_vertex::compile::compile;
use terrace_vertex::generate::GraphRecipe;
use terrace_vertex::layout::DataLayout;
use terrace_vertex::optimize::rank_passes;
use terrace_vertex::parse::parse;
use terrace_vertex::passes::PassContext;
use terrace_vertex::programs::shipped;

#[test]
fn picked_passes_are_nearly_the_fastest() {
    let machine = MigratoryMachine::emu_chick();
    let graph = GraphRecipe::parse("rmat:scale=7").unwrap().unwrap().draw().unwrap();
    let context = PassContext { graph: &graph, copy_bytes: 1 << 20 };
    for name in ["conductance", "triangles", "bfs", "components"] {
        let program = parse(shipped(name).unwrap()).unwrap();
        for layout in ["striped", "edges-striped"] {
            let layout = DataLayout::named(layout).unwrap();
            let ranked = rank_passes(&program, &[], layout, &machine, context).unwrap();
            let times: Vec<(u64, String)> = ranked
                .iter()
                .map(|candidate| {
                    let compiled = compile(&candidate.program, &graph, &[], layout, 8).unwrap();
                    let mut memory = compiled.memory.clone();
                    let limits = SimulationLimits::default();
                    let counters =
                        simulate(&machine, &compiled.map, &compiled.code, &mut memory, limits);
                    (counters.unwrap().elapsed_ps, format!("{:?}", candidate.passes))
                })
                .collect();
            let best = times.iter().min().unwrap();
            let original = times.iter().find(|(_, passes)| passes == "[]").unwrap();
            let what = format!("{name}: {:?}, best {best:?}, as it is {original:?}", times[0]);
            assert!(times[0].0 as f64 <= 1.25 * best.0 as f64, "{what}");
            assert!(times[0].0 <= original.0, "{what}");
        }
    }
}
