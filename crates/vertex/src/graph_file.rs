//! Graphs from the bytes of files: edge lists, Matrix Market, and the GAP suite's `.sg` and `.wsg`.

use crate::graph::{Graph, InEdges, InputEdge, Orientation, MOST_VERTICES};
use crate::VertexError;

/// The form of a graph file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GraphFileFormat {
    /// A line `FROM TO [WEIGHT]` for each edge, numbers from 0; lines with `#` or `%` are comments.
    EdgeList,
    /// Matrix Market coordinates, numbers from 1.
    MatrixMarket,
    /// The GAP suite's serialized graph.
    Serialized,
    /// The same with weights.
    SerializedWeighted,
}

impl GraphFileFormat {
    /// By a file's name; anything unknown is an edge list.
    #[must_use]
    pub fn of_name(name: &str) -> Self {
        match name.rsplit('.').next() {
            Some("mtx") => Self::MatrixMarket,
            Some("sg") => Self::Serialized,
            Some("wsg") => Self::SerializedWeighted,
            _ => Self::EdgeList,
        }
    }
}

/// Reads a graph. Edge lists are read with `orientation`; other forms say it themselves.
///
/// # Errors
/// [`VertexError::Graph`] with the line, or the byte, and what is wrong.
pub fn read_graph(
    name: &str,
    bytes: &[u8],
    format: GraphFileFormat,
    orientation: Orientation,
    in_edges: InEdges,
) -> Result<Graph, VertexError> {
    let bad = |why: String| VertexError::Graph { graph: name.to_owned(), why };
    let (vertices, edges, orientation) = match format {
        GraphFileFormat::EdgeList => {
            let (vertices, edges) = read_edge_list(text(bytes).map_err(bad)?).map_err(bad)?;
            (vertices, edges, orientation)
        }
        GraphFileFormat::MatrixMarket => {
            read_matrix_market(text(bytes).map_err(bad)?).map_err(bad)?
        }
        GraphFileFormat::Serialized => read_serialized(bytes, false).map_err(bad)?,
        GraphFileFormat::SerializedWeighted => read_serialized(bytes, true).map_err(bad)?,
    };
    Graph::new(name, vertices, &edges, orientation, in_edges)
}

fn text(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|e| format!("byte {} is no UTF-8 text", e.valid_up_to()))
}

fn number(word: Option<&str>, line: usize, what: &str) -> Result<u32, String> {
    let parsed = word.and_then(|word| word.parse::<u32>().ok());
    parsed.filter(|n| u64::from(*n) < MOST_VERTICES).ok_or_else(|| {
        let word = word.unwrap_or_default();
        format!("line {line}: {word:?} is no {what}; give a number below {MOST_VERTICES}")
    })
}

/// A weight: a whole number, or the whole part of another one.
fn weight(word: Option<&str>, line: usize) -> Result<i32, String> {
    let Some(word) = word else { return Ok(1) };
    let whole = word.parse::<i32>().ok();
    let real = || word.parse::<f64>().ok().filter(|w| w.abs() < 2e9).map(|w| w as i32);
    whole.or_else(real).ok_or_else(|| format!("line {line}: {word:?} is no weight"))
}

fn read_edge_list(text: &str) -> Result<(u64, Vec<InputEdge>), String> {
    let (mut edges, mut vertices) = (Vec::new(), 0);
    for (index, content) in text.lines().enumerate() {
        let content = content.trim();
        if content.is_empty() || content.starts_with(['#', '%']) {
            continue;
        }
        let line = index + 1;
        let mut words = content.split([' ', '\t', ',']).filter(|word| !word.is_empty());
        let from = number(words.next(), line, "vertex")?;
        let to = number(words.next(), line, "vertex")?;
        let weight = weight(words.next(), line)?;
        if let Some(more) = words.next() {
            return Err(format!("line {line}: {more:?} after the weight; give FROM TO [WEIGHT]"));
        }
        vertices = vertices.max(u64::from(from.max(to)) + 1);
        edges.push(InputEdge { from, to, weight });
    }
    // Numbers far apart would need memory that the file does not justify.
    let most = 64 * (edges.len() as u64 + 1024);
    if vertices > most {
        let last = vertices - 1;
        return Err(format!("vertex {last} with {} edges; number vertices from 0", edges.len()));
    }
    Ok((vertices, edges))
}

fn read_matrix_market(text: &str) -> Result<(u64, Vec<InputEdge>, Orientation), String> {
    let mut lines = text.lines().enumerate();
    let head = lines.next().map_or("", |(_, line)| line).to_ascii_lowercase();
    let words: Vec<&str> = head.split_whitespace().collect();
    let ["%%matrixmarket", "matrix", "coordinate", field, symmetry] = words[..] else {
        return Err("line 1: no %%MatrixMarket matrix coordinate FIELD SYMMETRY".to_owned());
    };
    let weighted = match field {
        "pattern" => false,
        "integer" | "real" => true,
        _ => return Err(format!("line 1: field {field}; give pattern, integer or real")),
    };
    let orientation = match symmetry {
        "general" => Orientation::Directed,
        "symmetric" => Orientation::Undirected,
        _ => return Err(format!("line 1: symmetry {symmetry}; give general or symmetric")),
    };
    let mut content = lines.filter(|(_, line)| {
        let line = line.trim();
        !line.is_empty() && !line.starts_with('%')
    });
    let (index, sizes) = content.next().ok_or("the line with the sizes is missing")?;
    let mut words = sizes.split_whitespace();
    let rows = number(words.next(), index + 1, "number of rows")?;
    let columns = number(words.next(), index + 1, "number of columns")?;
    let count = number(words.next(), index + 1, "number of entries")?;
    let vertices = rows.max(columns);
    if u64::from(vertices) > 64 * (u64::from(count) + 1024) {
        return Err(format!("{vertices} rows with {count} entries; that is no graph to simulate"));
    }
    let mut edges = Vec::new();
    for (index, entry) in content {
        let line = index + 1;
        let mut words = entry.split_whitespace();
        let mut end = || {
            let one = number(words.next(), line, "row or column")?;
            if one > vertices {
                return Err(format!("line {line}: {one} goes beyond {vertices}, the last vertex"));
            }
            one.checked_sub(1).ok_or_else(|| format!("line {line}: rows and columns begin at 1"))
        };
        let (from, to) = (end()?, end()?);
        let weight = if weighted { weight(words.next(), line)? } else { 1 };
        edges.push(InputEdge { from, to, weight });
    }
    if edges.len() as u64 != u64::from(count) {
        return Err(format!("{} entries, but line 2 or so says {count}", edges.len()));
    }
    Ok((u64::from(vertices), edges, orientation))
}

/// `bool directed, i64 edges, i64 vertices, i64 offsets[vertices + 1], neighbors[edges]`; of a
/// directed graph the same two arrays for in-edges follow, which say nothing new.
fn read_serialized(
    bytes: &[u8],
    weighted: bool,
) -> Result<(u64, Vec<InputEdge>, Orientation), String> {
    let short = || format!("the file ends early, after {} bytes", bytes.len());
    let word = |at: usize| {
        let word = bytes.get(at..at.checked_add(8)?)?;
        Some(i64::from_le_bytes(word.try_into().ok()?))
    };
    let directed = match bytes.first() {
        Some(0) => false,
        Some(1) => true,
        Some(other) => return Err(format!("byte 0 is {other}; 0 or 1 say whether it is directed")),
        None => return Err(short()),
    };
    let edge_count = word(1).ok_or_else(short)?;
    let vertices = word(9).ok_or_else(short)?;
    let (Ok(edge_count), Ok(vertices)) = (usize::try_from(edge_count), usize::try_from(vertices))
    else {
        return Err(format!("{vertices} vertices and {edge_count} edges are not possible"));
    };
    let size = if weighted { 8 } else { 4 };
    let lists = vertices
        .checked_add(1)
        .and_then(|offsets| offsets.checked_mul(8))
        .and_then(|bytes| bytes.checked_add(17))
        .ok_or_else(short)?;
    let end = edge_count.checked_mul(size).and_then(|bytes| bytes.checked_add(lists));
    if end.is_none_or(|end| end > bytes.len()) {
        return Err(short());
    }
    let mut edges = Vec::with_capacity(edge_count);
    let mut begin = 0;
    for vertex in 0..vertices {
        let next = word(17 + 8 * (vertex + 1)).and_then(|next| usize::try_from(next).ok());
        let next = next.filter(|next| (begin..=edge_count).contains(next));
        let next = next.ok_or_else(|| format!("the offset of vertex {vertex} is out of order"))?;
        for slot in begin..next {
            let at = lists + slot * size;
            let half = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(i32::from_le_bytes);
            let to = half(at).and_then(|to| u32::try_from(to).ok());
            let to = to.ok_or_else(|| format!("neighbor {slot} is no vertex"))?;
            let weight = if weighted { half(at + 4).unwrap_or(1) } else { 1 };
            edges.push(InputEdge { from: vertex as u32, to, weight });
        }
        begin = next;
    }
    let orientation = if directed { Orientation::Directed } else { Orientation::Undirected };
    Ok((vertices as u64, edges, orientation))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syntax::Direction;

    fn read(bytes: &[u8], format: GraphFileFormat) -> Result<Graph, VertexError> {
        read_graph("g", bytes, format, Orientation::Directed, InEdges::Kept)
    }

    #[test]
    fn edge_lists_and_matrices_are_read() {
        let list = read(b"# a graph\n0 1\n1,2,5\n\n2\t0 2.9\n", GraphFileFormat::EdgeList).unwrap();
        assert_eq!((list.vertices(), list.edges()), (3, 3));
        assert_eq!(list.lists(Direction::Out).unwrap().weights_of(2), [2]);
        let matrix =
            b"%%MatrixMarket matrix coordinate integer symmetric\n% c\n3 3 2\n1 2 7\n3 1 4\n";
        let matrix = read(matrix, GraphFileFormat::MatrixMarket).unwrap();
        assert_eq!((matrix.vertices(), matrix.edges()), (3, 4));
        assert_eq!(matrix.lists(Direction::In).unwrap().weights_of(0), [7, 4]);
    }

    fn serialized(directed: u8, counts: [i64; 2], offsets: &[i64], neighbors: &[i32]) -> Vec<u8> {
        let mut bytes = vec![directed];
        counts.iter().chain(offsets).for_each(|word| bytes.extend(word.to_le_bytes()));
        neighbors.iter().for_each(|half| bytes.extend(half.to_le_bytes()));
        bytes
    }

    #[test]
    fn serialized_graphs_are_read_and_hostile_ones_refused() {
        let good = serialized(0, [4, 3], &[0, 2, 3, 4], &[1, 2, 0, 0]);
        let graph = read(&good, GraphFileFormat::Serialized).unwrap();
        assert_eq!((graph.vertices(), graph.edges()), (3, 4));
        let weighted = serialized(1, [1, 2], &[0, 1, 1], &[1, 9]);
        let graph = read(&weighted, GraphFileFormat::SerializedWeighted).unwrap();
        assert_eq!(graph.lists(Direction::Out).unwrap().weights_of(0), [9]);
        for end in 0..good.len() {
            assert!(read(&good[..end], GraphFileFormat::Serialized).is_err());
        }
        for bytes in [
            serialized(7, [0, 0], &[0], &[]),
            serialized(0, [i64::MAX, i64::MAX], &[0], &[]),
            serialized(0, [-1, 3], &[0, 0, 0, 0], &[]),
            serialized(0, [1, 1], &[0, 1], &[-4]),
            serialized(0, [1, 1], &[0, 1], &[5]),
            serialized(0, [2, 2], &[0, 2, 1], &[1, 0]),
        ] {
            let error = read(&bytes, GraphFileFormat::Serialized).unwrap_err().to_string();
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }

    #[test]
    fn wrong_text_is_refused_with_its_line() {
        for (text, format, expected) in [
            ("0 1\n0 x\n", GraphFileFormat::EdgeList, "line 2: \"x\" is no vertex"),
            ("0 1 2 3\n", GraphFileFormat::EdgeList, "line 1: \"3\" after the weight"),
            ("", GraphFileFormat::EdgeList, "no vertices"),
            ("0 99999999\n", GraphFileFormat::EdgeList, "number vertices from 0"),
            ("1 2 3\n", GraphFileFormat::MatrixMarket, "line 1: no %%MatrixMarket"),
            (
                "%%MatrixMarket matrix coordinate pattern general\n2 2 1\n0 1\n",
                GraphFileFormat::MatrixMarket,
                "line 3: rows and columns begin at 1",
            ),
            (
                "%%MatrixMarket matrix coordinate pattern general\n2 2 1\n1 3\n",
                GraphFileFormat::MatrixMarket,
                "line 3: 3 goes beyond 2, the last vertex",
            ),
            ("0 4294967296\n", GraphFileFormat::EdgeList, "is no vertex; give a number below"),
            (
                "%%MatrixMarket matrix coordinate pattern general\n2 2 2\n1 1\n",
                GraphFileFormat::MatrixMarket,
                "1 entries",
            ),
        ] {
            let error = read(text.as_bytes(), format).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
