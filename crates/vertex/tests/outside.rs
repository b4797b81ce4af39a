//! Shipped programs against counts from elsewhere, natively and on the machine.
#![allow(clippy::unwrap_used)]

use terrace_migratory::simulation::{simulate, SimulationLimits};
use terrace_migratory::{MigratoryCounters, MigratoryMachine};
use terrace_vertex::compile::compile;
use terrace_vertex::format::format_text;
use terrace_vertex::generate::{GraphKind, GraphRecipe};
use terrace_vertex::graph::Graph;
use terrace_vertex::layout::DataLayout;
use terrace_vertex::native::{run, ProgramResults};
use terrace_vertex::parse::parse;
use terrace_vertex::programs::{shipped, SHIPPED};

/// Triangles of the GAP suite's Kronecker graphs of scale 6 and up, `-k 16`.
const TRIANGLES: [i64; 9] =
    [1134, 3823, 10_479, 28_110, 74_720, 195_184, 483_489, 1_180_925, 2_862_425];

fn returned(results: &ProgramResults, name: &str) -> i64 {
    results.returned.iter().find(|value| value.name == name).unwrap().value
}

fn on_machine(name: &str, graph: &Graph, layout: &str) -> (ProgramResults, MigratoryCounters) {
    let program = parse(shipped(name).unwrap()).unwrap();
    let machine = MigratoryMachine::emu_chick();
    let layout = DataLayout::named(layout).unwrap();
    let compiled = compile(&program, graph, &[], layout, machine.nodelets()).unwrap();
    let mut memory = compiled.memory.clone();
    let limits = SimulationLimits::default();
    let counters = simulate(&machine, &compiled.map, &compiled.code, &mut memory, limits).unwrap();
    (compiled.results(&memory).unwrap(), counters)
}

#[test]
fn triangles_of_kronecker_graphs_are_those_of_the_gap_suite() {
    let program = parse(shipped("triangles").unwrap()).unwrap();
    for (scale, expected) in (6..).zip(TRIANGLES).take(7) {
        let graph = GraphRecipe::new(GraphKind::Rmat, scale).draw().unwrap();
        let results = run(&program, &graph, &[], 2).unwrap();
        assert_eq!(returned(&results, "total"), expected, "scale {scale}");
        assert_eq!(results.properties[0].iter().sum::<i64>(), 3 * expected);
        if scale <= 8 {
            let (machine, _) = on_machine("triangles", &graph, "striped");
            assert_eq!(machine, results, "scale {scale}");
        }
    }
    let uniform = GraphRecipe::new(GraphKind::Uniform, 10).draw().unwrap();
    assert_eq!(returned(&run(&program, &uniform, &[], 1).unwrap(), "total"), 5170);
}

#[test]
fn a_formatted_program_keeps_its_comments_where_they_stood() {
    let text = "// Above.\nprogram  p;\nglobal n=0 ; // Declared.\n// Below.\n\n\
                parallel for v in vertices{ // Loop.\n  n+=(1) ; // Each.\n}\nreturn n;";
    let expected = "// Above.\nprogram p;\nglobal n = 0; // Declared.\n\n// Below.\n\
                    parallel for v in vertices { // Loop.\n    n += 1; // Each.\n}\nreturn n;\n";
    let formatted = format_text(text).unwrap();
    assert_eq!(formatted, expected);
    assert_eq!(format_text(&formatted).unwrap(), expected);
    for (lost, place) in
        [("global n // Lost.\n= 0;", "line 2, column 10"), ("", "line 3, column 1")]
    {
        let end = if lost.is_empty() { "return n;\n// Lost." } else { "" };
        let error = format_text(&format!("program p;\n{lost}{end}\n")).unwrap_err().to_string();
        assert!(error.starts_with(place) && error.contains("would be lost"), "{error}");
    }
}

#[test]
fn shipped_programs_compute_the_same_on_every_back_end_and_layout() {
    let recipe = GraphRecipe::parse("rmat:scale=6,edges=8,directed=yes").unwrap().unwrap();
    let graph = recipe.draw().unwrap();
    for shipped in SHIPPED {
        let program = parse(shipped.text).unwrap_or_else(|e| panic!("{}: {e}", shipped.name));
        // The layout does not break lines.
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&format_text(shipped.text).unwrap()), words(shipped.text));
        let native =
            run(&program, &graph, &[], 1).unwrap_or_else(|e| panic!("{}: {e}", shipped.name));
        assert_eq!(native, run(&program, &graph, &[], 3).unwrap(), "{}", shipped.name);
        for (layout, _) in DataLayout::NAMES {
            let (machine, counters) = on_machine(shipped.name, &graph, layout);
            assert_eq!(machine, native, "{} in layout {layout}", shipped.name);
            assert!(counters.migrations() > 0);
            let created = counters.sum(|n| n.threads_created);
            assert_eq!(created, counters.sum(|n| n.threads_ended));
            assert_eq!(created, counters.sum(|n| n.spawns) + 1);
            assert_eq!(counters.remote_updates(), counters.sum(|n| n.remote_in));
        }
    }
}

#[test]
fn counts_and_times_do_not_depend_on_host_threads() {
    let graph = GraphRecipe::new(GraphKind::Rmat, 6).draw().unwrap();
    let machine = MigratoryMachine::parse("emu-chick-8,nodes=2,nodelets=4").unwrap();
    let program = parse(shipped("bellman-ford-push").unwrap()).unwrap();
    let compiled = compile(&program, &graph, &[], DataLayout::default(), 8).unwrap();
    let run = |host_threads| {
        let mut memory = compiled.memory.clone();
        let limits = SimulationLimits { host_threads, ..SimulationLimits::default() };
        simulate(&machine, &compiled.map, &compiled.code, &mut memory, limits).unwrap()
    };
    let alone = run(1);
    for host_threads in [2, 3, 8, 64] {
        assert_eq!(run(host_threads), alone, "{host_threads} host threads");
    }
}
