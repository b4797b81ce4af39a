//! Room `engine` of Terrace; see ARCHITECTURE.md.
