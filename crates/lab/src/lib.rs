//! Room `lab` of Terrace; see ARCHITECTURE.md.
