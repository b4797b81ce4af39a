//! Room `track` of Terrace; see ARCHITECTURE.md.
