//! Transformed programs compute what they computed before.
#![allow(clippy::unwrap_used)]

use terrace_migratory::simulation::{simulate, SimulationLimits};
use terrace_migratory::MigratoryMachine;
use terrace_vertex::compile::compile;
use terrace_vertex::format::format;
use terrace_vertex::generate::GraphRecipe;
use terrace_vertex::layout::DataLayout;
use terrace_vertex::native::run;
use terrace_vertex::parse::parse;
use terrace_vertex::passes::{Pass, PassContext};
use terrace_vertex::programs::{shipped, SHIPPED};

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
            assert_eq!(run(&outcome.program, &graph, &[], 2).unwrap(), expected, "{what}");
            for (layout, _) in DataLayout::NAMES {
                let layout = DataLayout::named(layout).unwrap();
                let compiled = compile(&outcome.program, &graph, &[], layout, 8).unwrap();
                let mut memory = compiled.memory.clone();
                let limits = SimulationLimits::default();
                simulate(&machine, &compiled.map, &compiled.code, &mut memory, limits).unwrap();
                assert_eq!(compiled.results(&memory).unwrap(), expected, "{what}");
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
