//! Room `topology` of Terrace; see ARCHITECTURE.md.
