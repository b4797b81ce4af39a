//! Room `sys` of Terrace; see ARCHITECTURE.md.
