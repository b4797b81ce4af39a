//! Programs and graphs by name, by recipe, or from files.

use super::MigratoryProblem;
use std::io::Read;
use std::path::Path;
use terrace_vertex::format::format_text;
use terrace_vertex::generate::GraphRecipe;
use terrace_vertex::graph::{Graph, InEdges, Orientation};
use terrace_vertex::graph_file::{read_graph, GraphFileFormat};
use terrace_vertex::parse::parse;
use terrace_vertex::programs::{shipped, SHIPPED};
use terrace_vertex::syntax::VertexProgram;
use terrace_vertex::VertexError;

/// Bytes of a program that are read at most.
const LARGEST_PROGRAM: u64 = 1 << 20;
/// Bytes of a graph file that are read at most.
const LARGEST_GRAPH: u64 = 8 << 30;

/// Reads a program's file, or a shipped program.
///
/// # Errors
/// [`MigratoryProblem::File`], [`MigratoryProblem::Program`].
pub fn load_program(source: &str) -> Result<VertexProgram, MigratoryProblem> {
    parse(&program_text(source)?).map_err(|error| wrong_program(source, error))
}

/// The text of a program's file, or of a shipped program, in the one layout.
///
/// # Errors
/// [`MigratoryProblem::File`], [`MigratoryProblem::Program`].
pub fn format_program(source: &str) -> Result<String, MigratoryProblem> {
    format_text(&program_text(source)?).map_err(|error| wrong_program(source, error))
}

fn wrong_program(source: &str, error: VertexError) -> MigratoryProblem {
    MigratoryProblem::Program { program: source.to_owned(), error }
}

fn program_text(source: &str) -> Result<String, MigratoryProblem> {
    match shipped(source).filter(|_| !Path::new(source).exists()) {
        Some(text) => Ok(text.to_owned()),
        None => {
            let known: Vec<&str> = SHIPPED.iter().map(|program| program.name).collect();
            let hint = format!("give a program's file or {}", known.join(", "));
            let bytes = read_file("program", source, LARGEST_PROGRAM, &hint)?;
            String::from_utf8(bytes).map_err(|_| MigratoryProblem::File {
                what: "program",
                path: source.to_owned(),
                why: "not UTF-8 text".to_owned(),
            })
        }
    }
}

/// Draws a graph, or reads one from a file; `FILE,directed=yes` reads an edge list as directed.
///
/// # Errors
/// [`MigratoryProblem`].
pub fn load_graph(source: &str) -> Result<Graph, MigratoryProblem> {
    match GraphRecipe::parse(source) {
        Some(recipe) => Ok(recipe?.draw()?),
        None => {
            let (path, orientation) = match source.strip_suffix(",directed=yes") {
                Some(path) => (path, Orientation::Directed),
                None => (source, Orientation::Undirected),
            };
            let hint = "give a graph file, or rmat, uniform or grid with :scale=N";
            let bytes = read_file("graph", path, LARGEST_GRAPH, hint)?;
            let format = GraphFileFormat::of_name(path);
            Ok(read_graph(path, &bytes, format, orientation, InEdges::Kept)?)
        }
    }
}

fn read_file(
    what: &'static str,
    path: &str,
    most: u64,
    hint: &str,
) -> Result<Vec<u8>, MigratoryProblem> {
    let bad = |why: String| MigratoryProblem::File { what, path: path.to_owned(), why };
    let file = std::fs::File::open(path).map_err(|e| bad(format!("{e}; {hint}")))?;
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).map_err(|e| bad(e.to_string()))?;
    if bytes.len() as u64 > most {
        return Err(bad(format!("longer than {most} bytes")));
    }
    Ok(bytes)
}

/// What of a file's edges is left out. Generators repeat edges by design, and serialized
/// graphs have none that repeat.
pub(super) fn left_out(source: &str, graph: &Graph) -> Option<String> {
    let edges = graph.left_out();
    let built = matches!(
        GraphFileFormat::of_name(source),
        GraphFileFormat::Serialized | GraphFileFormat::SerializedWeighted
    );
    let any = edges.loops + edges.repeated > 0 && GraphRecipe::parse(source).is_none() && !built;
    any.then(|| format!("left out: {} loops and {} repeated edges", edges.loops, edges.repeated))
}
