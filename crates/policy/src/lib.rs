//! Room `policy` of Terrace; see ARCHITECTURE.md.
