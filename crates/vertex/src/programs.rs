//! The programs that come with the compiler.

/// A program's name and text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShippedProgram {
    /// Its name.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

macro_rules! shipped {
    ($($name:literal),*) => {
        &[$(ShippedProgram { name: $name,
            text: include_str!(concat!("../programs/", $name, ".tv")) }),*]
    };
}

/// All of them.
pub const SHIPPED: &[ShippedProgram] = shipped![
    "conductance",
    "bellman-ford-pull",
    "bellman-ford-push",
    "triangles",
    "pagerank",
    "bfs",
    "teenage-followers",
    "components"
];

/// A shipped program's text by its name.
#[must_use]
pub fn shipped(name: &str) -> Option<&'static str> {
    SHIPPED.iter().find(|program| program.name == name).map(|program| program.text)
}
