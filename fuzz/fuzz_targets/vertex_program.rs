//! Vertex programs: no text panics; what is read is written and read back as the same tree, and
//! runs where it is legal.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_vertex::format::format;
use terrace_vertex::generate::{GraphKind, GraphRecipe};
use terrace_vertex::layout::DataLayout;
use terrace_vertex::parse::parse;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(program) = parse(text) else { return };
    let formatted = format(&program);
    let again = parse(&formatted).map(|program| format(&program));
    assert_eq!(again.as_ref(), Ok(&formatted));
    let Ok(graph) = GraphRecipe::new(GraphKind::Rmat, 2).draw() else { return };
    let _ = terrace_vertex::compile::compile(&program, &graph, &[], DataLayout::default(), 4);
});
