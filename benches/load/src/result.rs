//! The results: rows of settings and figures.

use serde::{Serialize, Serializer, ser::SerializeMap};

/// The figures of one setting. As a document, it is one flat object.
#[derive(Debug, Clone, PartialEq)]
pub struct BenchRow {
    /// What was measured.
    pub bench: &'static str,
    /// The settings, by name.
    pub settings: Vec<(&'static str, u64)>,
    /// The figures, by name. The names have the units.
    pub figures: Vec<(&'static str, f64)>,
}

impl Serialize for BenchRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("bench", self.bench)?;
        for (name, value) in &self.settings {
            map.serialize_entry(name, value)?;
        }
        for (name, value) in &self.figures {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_one_flat_object() {
        let row = BenchRow {
            bench: "put",
            settings: vec![("inflight", 1)],
            figures: vec![("per_second", 1234.5), ("p50_ms", 0.5)],
        };
        let json = serde_json::to_string(&row).expect("JSON");
        assert_eq!(json, r#"{"bench":"put","inflight":1,"per_second":1234.5,"p50_ms":0.5}"#);
    }
}
