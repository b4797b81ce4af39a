//! Rules of the house, executable.
fn main() {}
