//! What is wrong with programs, graphs and passes is said in one line.
#![allow(clippy::unwrap_used)]

use terrace_vertex::generate::GraphRecipe;
use terrace_vertex::native::run;
use terrace_vertex::parse::parse;
use terrace_vertex::passes::{Pass, PassContext};
use terrace_vertex::VertexError;

const HEAD: &str = "program p;\nvertex a = 0;\nvertex b = 0;\nglobal g = 0;\n";

fn error(body: &str, graph: &str) -> String {
    let graph = GraphRecipe::parse(graph).unwrap().unwrap().draw().unwrap();
    let outcome: Result<_, VertexError> =
        parse(&format!("{HEAD}{body}")).and_then(|program| run(&program, &graph, &[], 1));
    let error = outcome.map(|_| body).unwrap_err().to_string();
    assert_eq!(error.lines().count(), 1, "{error}");
    error
}

#[test]
fn wrong_programs_are_refused_with_their_line() {
    for (body, expected) in [
        (
            "parallel for v in vertices { v.a = ; }",
            "line 5, column 36: \";\" found, a value expected",
        ),
        ("g = 1", "\";\" expected"),
        ("g = 99999999999999999999;", "a 64-bit number expected"),
        ("g = 1 $ 2;", "'$' found"),
        ("g = x;", "line 5: x is not declared"),
        ("g = a;", "a is a property; write VERTEX.a"),
        ("let x = 1;", "declare a global instead"),
        ("parallel for v in vertices { parallel for w in vertices { } }", "within another"),
        ("parallel for v in vertices { while 1 limit 2 { } }", "could run forever"),
        ("parallel for a in vertices { }", "a is already in use"),
        ("while 1 limit 10 { g += 1; }", "line 5 did not end within its limit of 10"),
    ] {
        let error = error(body, "rmat:scale=3");
        assert!(error.contains(expected), "{body}: {error}");
    }
}

#[test]
fn races_are_named_by_their_lines() {
    for (body, lines, value) in [
        ("for u in v.neighbors {\nu.a = 1;\n}", "lines 7 and 7", "a"),
        ("for u in v.neighbors {\nu.a += 1;\n}", "lines 7 and 7", "a"),
        ("v.a = 1;\nfor u in v.neighbors {\natomic u.a += 1;\n}", "lines 6 and 8", "a"),
        ("v.a = 1;\nfor u in v.neighbors {\nv.b = u.a;\n}", "lines 6 and 8", "a"),
        ("g = 1;", "lines 6 and 6", "g"),
        ("g += 1;\nv.a = g;", "lines 6 and 7", "g"),
        ("g += 1;\ng max= 1;", "lines 6 and 7", "g"),
    ] {
        let error = error(&format!("parallel for v in vertices {{\n{body}\n}}"), "rmat:scale=3");
        assert!(error.contains(lines) && error.contains(&format!("race on {value}")), "{error}");
    }
}

#[test]
fn what_depends_on_the_order_of_vertices_cannot_be_laid_out_by_degree() {
    let text = |value: &str| {
        format!(
            "program p by degree;\nvertex a = self;\n\
             parallel for v in vertices {{\nfor u in v.neighbors {{ atomic u.a += {value}; }}\n}}\n"
        )
    };
    let graph = GraphRecipe::parse("rmat:scale=3").unwrap().unwrap().draw().unwrap();
    for (value, expected) in [
        ("v", "line 4: it uses the number of v; leave out \"by degree\""),
        ("v.a", "line 4: the value of a there depends on the order of vertices"),
    ] {
        let error = run(&parse(&text(value)).unwrap(), &graph, &[], 1).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    run(&parse(&text("1")).unwrap(), &graph, &[], 1).unwrap();
}

#[test]
fn missing_in_edges_and_unknown_parameters_are_named() {
    let pull = "parallel for v in vertices {\nfor u in v.in { v.a += u.b; }\n}";
    let error = error(pull, "rmat:scale=3,directed=yes,inverse=no");
    assert!(error.contains("line 6 follows in-edges"), "{error}");
    let graph = GraphRecipe::parse("rmat:scale=3").unwrap().unwrap().draw().unwrap();
    let program = parse("program p;\nparameter q = 1;\n").unwrap();
    let unknown = run(&program, &graph, &[("r".to_owned(), 1)], 1).unwrap_err().to_string();
    assert!(unknown.contains("parameter r") && unknown.contains("it has q"), "{unknown}");
}

#[test]
fn passes_say_why_they_refuse() {
    let recipe = GraphRecipe::parse("rmat:scale=3,directed=yes,inverse=no").unwrap().unwrap();
    let graph = recipe.draw().unwrap();
    let context = PassContext { graph: &graph, copy_bytes: 8 };
    for (pass, body, expected) in [
        (
            Pass::Fusion,
            "parallel for v in vertices { v.a = 1; } parallel for w in vertices { \
             for u in w.neighbors { w.b += u.a; } }",
            "the access to a at line 5 depends on that at line 5",
        ),
        (
            Pass::Fusion,
            "parallel for v in vertices { g += 1; } parallel for w in vertices { w.a = g; }",
            "the access to g",
        ),
        (
            Pass::Flip,
            "parallel for v in vertices { for u in v.out { atomic u.a += v.b; } }",
            "the graph keeps no in-edges",
        ),
        (
            Pass::Flip,
            "parallel for v in vertices { for u in v.in { let x = u.b; v.a += x; } }",
            "does more than update",
        ),
        (
            Pass::Remote,
            "parallel for v in vertices { for u in v.out { let x = atomic u.a += 1; v.b = x; } }",
            "its value is used at line 5",
        ),
        (Pass::Replicate, "parallel for v in vertices { v.a = v.b; }", "a is written at line 5"),
        (Pass::Hoist, "g = 1;", "there is nothing to change"),
        (
            Pass::Hybrid,
            "parallel for v in vertices { for u in v.out { atomic u.a += v.b; } }",
            "no condition says which vertices are active",
        ),
        (
            Pass::Hybrid,
            "parallel for v in vertices { if v.b { for u in v.out { atomic u.a += v.b; } } }",
            "the graph keeps no in-edges",
        ),
        (
            Pass::Hybrid,
            "parallel for v in vertices { for u in v.in { v.a += u.b; } }",
            "it pulls; flip it first",
        ),
        (
            Pass::Reorder,
            "parallel for v in vertices { for u in v.out { v.a = u.b; } }",
            "a keeps the value of the last neighbor",
        ),
        (
            Pass::Reorder,
            "parallel for v in vertices { let x = atomic g += 1; v.a = x; }",
            "depends on the order of threads",
        ),
        (
            Pass::Reorder,
            "parallel for v in vertices { let x = 0; for u in v.out { x += u.b; x max= 3; } \
             v.a = x; }",
            "the value of x there depends on the order of vertices",
        ),
    ] {
        let program = parse(&format!("{HEAD}{body}")).unwrap();
        let error = pass.apply(&program, context).unwrap_err().to_string();
        assert!(error.contains(expected), "{body}: {error}");
    }
}
