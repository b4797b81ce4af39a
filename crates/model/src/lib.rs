//! Room `model` of Terrace; see ARCHITECTURE.md.
