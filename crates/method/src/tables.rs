//! temporary
use crate::MethodReport;
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResultTable {
    pub title: String,
    pub columns: Vec<String>,
    pub rows: Vec<Vec<String>>,
    pub notes: Vec<String>,
}
impl MethodReport {
    pub fn tables(&self) -> Vec<ResultTable> {
        Vec::new()
    }
}
