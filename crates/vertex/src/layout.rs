//! Where a graph's data lies: separate from the algorithm.

/// How the properties of vertices lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VertexLayout {
    /// One array for each property, striped by vertex.
    #[default]
    Striped,
    /// Records of vertices, found by a striped array of pointers. Records lie on the nodelets in
    /// turn, in an order that has nothing to do with the vertices' numbers, as where a graph grows
    /// while edges stream in.
    Pointers,
}

/// How lists of neighbours lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EdgeLayout {
    /// On the nodelet of their vertex.
    #[default]
    WithVertex,
    /// In arrays of all edges, striped by edge.
    Striped,
}

/// Where data lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DataLayout {
    /// Properties of vertices.
    pub vertices: VertexLayout,
    /// Lists of neighbours.
    pub edges: EdgeLayout,
}

impl DataLayout {
    /// Names of layouts.
    pub const NAMES: [(&'static str, &'static str); 3] = [
        ("striped", "properties striped by vertex, neighbours on their vertex's nodelet"),
        ("pointers", "records of vertices behind a striped array of pointers"),
        ("edges-striped", "properties striped by vertex, neighbours striped by edge"),
    ];

    /// A layout by its name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let striped = Self::default();
        Some(match name {
            "striped" => striped,
            "pointers" => Self { vertices: VertexLayout::Pointers, ..striped },
            "edges-striped" => Self { edges: EdgeLayout::Striped, ..striped },
            _ => return None,
        })
    }
}
