//! Transformed programs compute what they computed before.
#![allow(clippy::unwrap_used)]

use terrace_migratory::simulation::{simulate, SimulationLimits};
use terrace_migratory::MigratoryMachine;
use terrace_vertex::compile::compile;
use terrace_vertex::format::format;
use terrace_vertex::generate::GraphRecipe;
use terrace_vertex::layout::DataLayout;
use terrace_vertex::native::{run, ProgramResults};
use terrace_vertex::parse::parse;
use terrace_vertex::passes::{Pass, PassContext};
use terrace_vertex::programs::{shipped, SHIPPED};

/// The same, but for globals and properties that a pass added behind the others.
fn is_same(results: &ProgramResults, expected: &ProgramResults) -> bool {
    let properties = results.properties.iter().zip(&expected.properties);
    results.returned == expected.returned
        && results.globals.starts_with(&expected.globals)
        && results.properties.len() >= expected.properties.len()
        && properties.into_iter().all(|(a, b)| a == b)
}

#[test]
fn every_pass_keeps_the_results_of_every_shipped_program() {
    let recipe = GraphRecipe::parse("rmat:scale=6,edges=8,directed=yes").unwrap().unwrap();
    let graph = recipe.draw().unwrap();
    let context = PassContext { graph: &graph, copy_bytes: 1 << 20 };
    let machine = MigratoryMachine::emu_chick();
    let mut applied = Vec::new();
    for shipped in SHIPPED {
        let program = parse(shipped.text).unwrap();
        let expected = run(&program, &graph, &[], 1).unwrap();
        for (name, pass, _) in Pass::ALL {
            let Ok(outcome) = pass.apply(&program, context) else { continue };
            applied.push((shipped.name, name));
            let text = format(&outcome.program);
            assert_eq!(format(&parse(&text).unwrap()), text);
            let what = format!("{name} of {}:\n{text}", shipped.name);
            let native = run(&outcome.program, &graph, &[], 2).unwrap();
            assert!(is_same(&native, &expected), "{what}");
            for (layout, _) in DataLayout::NAMES {
                let layout = DataLayout::named(layout).unwrap();
                let compiled = compile(&outcome.program, &graph, &[], layout, 8).unwrap();
                let mut memory = compiled.memory.clone();
                let limits = SimulationLimits::default();
                simulate(&machine, &compiled.map, &compiled.code, &mut memory, limits).unwrap();
                assert_eq!(compiled.results(&memory).unwrap(), native, "{what}");
            }
        }
    }
    for expected in [
        ("conductance", "fusion"),
        ("conductance", "replicate"),
        ("bellman-ford-pull", "flip"),
        ("bellman-ford-push", "flip"),
        ("bellman-ford-push", "remote"),
        ("triangles", "remote"),
        ("pagerank", "flip"),
        ("components", "hoist"),
        ("bfs", "hybrid"),
        ("bellman-ford-push", "hybrid"),
        ("bfs", "reorder"),
        ("components", "reorder"),
        ("triangles", "reorder"),
    ] {
        assert!(applied.contains(&expected), "{expected:?} is not among {applied:?}");
    }
}

#[test]
fn flipping_the_pull_gives_the_push() {
    let graph = GraphRecipe::parse("rmat:scale=4").unwrap().unwrap().draw().unwrap();
    let context = PassContext { graph: &graph, copy_bytes: 0 };
    let pull = parse(shipped("bellman-ford-pull").unwrap()).unwrap();
    let push = parse(shipped("bellman-ford-push").unwrap()).unwrap();
    let flipped = Pass::Flip.apply(&pull, context).unwrap().program;
    // The same loop, with the names of the two vertices swapped.
    let swap = |c: &str| match c {
        "u" => "v".to_owned(),
        "v" => "u".to_owned(),
        other => other.to_owned(),
    };
    let flipped: Vec<String> = words(&format(&flipped)).iter().map(|word| swap(word)).collect();
    let push = words(&format(&push));
    let looped = |words: &[String]| {
        let begin = words.iter().position(|word| word == "parallel").unwrap();
        let end = words.iter().position(|word| word == "x").unwrap();
        words[begin..end].to_vec()
    };
    assert_eq!(looped(&flipped), looped(&push));
}

/// Words and symbols.
fn words(text: &str) -> Vec<String> {
    let spaced: String = text
        .chars()
        .flat_map(|c| if c.is_alphanumeric() || c == '_' { vec![c] } else { vec![' ', c, ' '] })
        .collect();
    spaced.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn a_hybrid_search_pulls_in_full_rounds_only() {
    let graph = GraphRecipe::parse("rmat:scale=8").unwrap().unwrap().draw().unwrap();
    let context = PassContext { graph: &graph, copy_bytes: 0 };
    let bfs = parse(shipped("bfs").unwrap()).unwrap();
    let hybrid = Pass::Hybrid.apply(&bfs, context).unwrap().program;
    // Counts how often each form runs: an update of a global of its own in front of either.
    let text = format(&hybrid);
    let text = text
        .replacen("global depth = 0;", "global depth = 0;\nglobal pulled = 0;", 1)
        .replacen("global depth = 0;", "global depth = 0;\nglobal pushed = 0;", 1)
        .replacen("> edges {", "> edges {\npulled += 1;", 1)
        .replacen("} else {", "} else {\npushed += 1;", 1)
        .replacen("return reached, depth;", "return reached, depth, pulled, pushed;", 1);
    let results = run(&parse(&text).unwrap(), &graph, &[], 1).unwrap();
    let of = |name: &str| results.returned.iter().find(|v| v.name == name).unwrap().value;
    assert!(of("pulled") >= 1 && of("pushed") >= 2, "{:?}", results.returned);
    assert_eq!(of("pulled") + of("pushed"), of("depth"));
}

#[test]
fn vertices_by_degree_are_spread_more_evenly() {
    let graph = GraphRecipe::parse("rmat:scale=9").unwrap().unwrap().draw().unwrap();
    let context = PassContext { graph: &graph, copy_bytes: 0 };
    let machine = MigratoryMachine::emu_chick();
    let busiest = |program| {
        let compiled = compile(program, &graph, &[], DataLayout::default(), 8).unwrap();
        let mut memory = compiled.memory.clone();
        let limits = SimulationLimits::default();
        let counters =
            simulate(&machine, &compiled.map, &compiled.code, &mut memory, limits).unwrap();
        counters.most(|n| n.memory_words) as f64 / counters.sum(|n| n.memory_words) as f64
    };
    let pagerank = parse(shipped("pagerank").unwrap()).unwrap();
    let reordered = Pass::Reorder.apply(&pagerank, context).unwrap().program;
    // An even share is an eighth; the hubs and the reads of numbers leave less than a fifth more.
    let (before, after) = (busiest(&pagerank), busiest(&reordered));
    assert!(after < 0.15 && before > 1.5 * after, "{before} before, {after} after");
}
