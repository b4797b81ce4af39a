//! Random programs on random graphs: native threads, the machine in every layout, and every pass
//! compute the same.
#![allow(clippy::unwrap_used)]

use terrace_migratory::simulation::{simulate, SimulationLimits};
use terrace_migratory::MigratoryMachine;
use terrace_vertex::compile::compile;
use terrace_vertex::format::format;
use terrace_vertex::generate::{GraphKind, GraphRecipe};
use terrace_vertex::graph::{Graph, Orientation};
use terrace_vertex::layout::DataLayout;
use terrace_vertex::native::{run, ProgramResults};
use terrace_vertex::parse::parse;
use terrace_vertex::passes::{Pass, PassContext};
use terrace_vertex::syntax::VertexProgram;

/// SplitMix64 (Steele, Lea, Flood, 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }

    fn pick<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.below(choices.len() as u64) as usize]
    }
}

const PROPERTIES: [&str; 4] = ["a", "b", "c", "d"];
const REDUCTIONS: [&str; 6] = ["+=", "min=", "max=", "&=", "|=", "^="];

/// A value of one vertex, without the property that the loop changes.
fn value(random: &mut Random, vertex: &str, without: &str, depth: u32) -> String {
    if depth == 0 || random.below(3) == 0 {
        return match random.below(5) {
            0 => random.below(20).to_string(),
            1 => vertex.to_owned(),
            2 => format!("{vertex}.out_degree"),
            _ => {
                let known: Vec<&str> =
                    PROPERTIES.into_iter().filter(|property| *property != without).collect();
                format!("{vertex}.{}", random.pick(&known))
            }
        };
    }
    let a = value(random, vertex, without, depth - 1);
    let b = value(random, vertex, without, depth - 1);
    match random.below(4) {
        0 => format!("min({a}, {b})"),
        1 => format!("-({a})"),
        _ => {
            let symbols = ["+", "-", "*", "/", "%", "&", "|", "^", "<", "==", ">=", "&&", "||"];
            format!("({a} {} {b})", random.pick(&symbols))
        }
    }
}

fn parallel_loop(random: &mut Random, index: u64) -> String {
    let (v, u) = (format!("v{index}"), format!("u{index}"));
    let changed = random.pick(&PROPERTIES);
    let op = random.pick(&REDUCTIONS);
    let mut outer = |depth| value(random, &v, changed, depth);
    let (own, condition) = (outer(3), outer(2));
    let far = value(random, &u, changed, 2);
    let far_condition = value(random, &u, changed, 1);
    let body = match random.below(8) {
        0 => format!("{v}.{changed} = {own};"),
        1 => format!("if {condition} {{ {v}.{changed} {op} {own}; }} else {{ g += 1; }}"),
        2 => format!("h {op} {own};"),
        3 => format!("for {u} in {v}.in via e {{ {v}.{changed} {op} {far} + e.weight; }}"),
        4 => format!(
            "for {u} in {v}.in {{ if {far_condition} {{ {v}.{changed} {op} {far}; }} }} g += {own};"
        ),
        5 => format!("for {u} in {v}.neighbors {{ atomic {u}.{changed} {op} {own}; }}"),
        6 => format!(
            "if {condition} \
                {{ for {u} in {v}.out via e {{ atomic {u}.{changed} {op} {own} * e.weight; }} }}"
        ),
        _ => format!(
            "let x = {own}; for {u} in {v}.neighbors {{ if edge({u}, {v}) {{ x += {far}; }} }} \
                {v}.{changed} = x;"
        ),
    };
    format!("parallel for {v} in vertices {{ {body} }}\n")
}

fn program(random: &mut Random) -> VertexProgram {
    let mut text =
        "program random;\nparameter p = 3;\nedge weight;\nglobal g = 0;\nglobal h = 5;\n\
                    vertex a = self;\nvertex b = self * p % 7;\nvertex c = 1;\nvertex d = \
                    infinity;\n"
            .to_owned();
    for index in 0..2 + random.below(4) {
        text += &parallel_loop(random, index);
    }
    text += "return g, h;\n";
    parse(&text).unwrap_or_else(|e| panic!("{e}:\n{text}"))
}

fn graph(random: &mut Random) -> Graph {
    let kind = [GraphKind::Rmat, GraphKind::Uniform][random.below(2) as usize];
    let mut recipe = GraphRecipe::new(kind, random.below(6) as u32);
    recipe.edges = random.below(6) as u32;
    recipe.seed = random.below(1000) as u32;
    recipe.orientation = [Orientation::Directed, Orientation::Undirected][random.below(2) as usize];
    recipe.draw().unwrap()
}

fn on_machine(
    program: &VertexProgram,
    graph: &Graph,
    layout: &str,
    machine: &str,
) -> ProgramResults {
    let machine = MigratoryMachine::parse(machine).unwrap();
    let layout = DataLayout::named(layout).unwrap();
    let compiled = compile(program, graph, &[], layout, machine.nodelets()).unwrap();
    let mut memory = compiled.memory.clone();
    let mut untimed = compiled.memory.clone();
    let limits = SimulationLimits { host_threads: 1, instructions: 1 << 30 };
    simulate(&machine, &compiled.map, &compiled.code, &mut memory, limits).unwrap();
    terrace_migratory::count::count(&compiled.map, &compiled.code, &mut untimed, 1 << 30).unwrap();
    let results = compiled.results(&memory).unwrap();
    assert_eq!(compiled.results(&untimed).unwrap(), results);
    results
}

/// The same, but for globals and properties that a pass added behind the others.
fn is_same(results: &ProgramResults, expected: &ProgramResults) -> bool {
    let properties = results.properties.iter().zip(&expected.properties);
    results.returned == expected.returned
        && results.globals.starts_with(&expected.globals)
        && properties.into_iter().all(|(a, b)| a == b)
}

#[test]
fn random_programs_compute_the_same_everywhere() {
    let mut applied = std::collections::HashMap::new();
    for seed in 0..150 {
        let mut random = Random(seed);
        let (program, graph) = (program(&mut random), graph(&mut random));
        let what = |how: &str| format!("seed {seed}, {how}:\n{}", format(&program));
        let expected =
            run(&program, &graph, &[], 1).unwrap_or_else(|e| panic!("{e}: {}", what("")));
        assert_eq!(run(&program, &graph, &[], 3).unwrap(), expected, "{}", what("threads"));
        for (layout, _) in DataLayout::NAMES {
            for machine in ["emu-chick", "emu-chick-8,nodes=2,nodelets=3,threads=2"] {
                let results = on_machine(&program, &graph, layout, machine);
                assert_eq!(results, expected, "{} on {machine}", what(layout));
            }
        }
        let context = PassContext { graph: &graph, copy_bytes: 1 << 20 };
        let mut sequence = program.clone();
        for (name, pass, _) in Pass::ALL {
            for (start, chained) in [(program.clone(), false), (sequence.clone(), true)] {
                let Ok(outcome) = pass.apply(&start, context) else { continue };
                *applied.entry(name).or_insert(0) += 1;
                let text = format(&outcome.program);
                let native = run(&outcome.program, &graph, &[], 2).unwrap();
                assert!(is_same(&native, &expected), "{}\nbecame\n{text}", what(name));
                let layout = ["striped", "pointers"][seed as usize % 2];
                let machine = on_machine(&outcome.program, &graph, layout, "emu-chick");
                assert_eq!(machine, native, "{}\nbecame\n{text}", what(name));
                assert_eq!(format(&parse(&text).unwrap()), text);
                if chained {
                    sequence = outcome.program;
                }
            }
        }
    }
    for (name, ..) in Pass::ALL {
        assert!(applied.get(name).is_some_and(|count| *count > 10), "{name} of {applied:?}");
    }
}
