//! Templates: what an exporter says its records consist of.
//!
//! Invariant: a kept template takes at least one byte of every record, and all of a session's take a bounded memory.

use super::meaning::{Meaning, meaning};
use super::{Malformed, SessionOptions};
use crate::export::section::{REVERSE, VARIABLE};
use std::collections::BTreeMap;

/// No message holds a longer template.
const MOST_FIELDS: usize = 4096;

/// A field as the template has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct FieldName {
    /// 0: IANA's, or Cisco's below 128.
    pub(super) enterprise: u32,
    pub(super) id: u16,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub(super) length: u16,
    pub(super) reverse: bool,
    pub(super) meaning: Meaning,
}

#[derive(Clone, Debug)]
pub(super) struct Template {
    pub(super) fields: Box<[Field]>,
    /// Fields of flows that we have no place for.
    pub(super) skipped: Box<[FieldName]>,
    /// Whether its records are about the exporter instead of flows.
    pub(super) options: bool,
    /// Bytes of a record, at least.
    pub(super) least: usize,
    heard_ns: u64,
}

impl Template {
    /// `fields` in order; the first `scopes` of an options template of NetFlow v9 have numbers of their own and are skipped
    /// by the caller, who names them 0.
    pub(super) fn new(
        id: u16,
        fields: &[(FieldName, u16)],
        options: bool,
        now_ns: u64,
    ) -> Result<Self, Malformed> {
        let refused = |why| Malformed::Template { id, why };
        if fields.len() > MOST_FIELDS {
            return Err(refused("has more fields than a message holds"));
        }
        let least =
            fields.iter().map(|(_, length)| if *length == VARIABLE { 1 } else { usize::from(*length) });
        let least = least.sum();
        if least == 0 {
            return Err(refused("describes records without a byte"));
        }
        let compiled = fields.iter().map(|(name, length)| Field {
            length: *length,
            reverse: name.enterprise == REVERSE,
            meaning: meaning(*name),
        });
        let compiled: Box<[Field]> = compiled.collect();
        let skipped = fields.iter().zip(&compiled).filter(|(_, field)| field.meaning == Meaning::Skipped);
        let skipped = if options { Box::default() } else { skipped.map(|((name, _), _)| *name).collect() };
        Ok(Self { fields: compiled, skipped, options, least, heard_ns: now_ns })
    }

    const fn cost(&self) -> usize {
        self.fields.len() + self.skipped.len() + 4
    }
}

impl FieldName {
    /// Of a scope of NetFlow v9.
    pub(super) const NONE: Self = Self { enterprise: 0, id: 0 };
}

/// A session's templates.
#[derive(Clone, Debug, Default)]
pub(super) struct Templates {
    kept: BTreeMap<u16, Template>,
    cost: usize,
}

impl Templates {
    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    pub(super) fn find(&self, id: u16) -> Option<&Template> {
        self.kept.get(&id)
    }

    /// Keeps a template; one of the same number is replaced. Gives how many others had to go for want of room.
    pub(super) fn keep(&mut self, id: u16, template: Template, options: &SessionOptions) -> u64 {
        self.remove(id);
        let mut evicted = 0;
        while self.kept.len() >= options.templates || self.cost + template.cost() > options.template_fields {
            let oldest = self.kept.iter().min_by_key(|(_, kept)| kept.heard_ns).map(|(id, _)| *id);
            let Some(oldest) = oldest else { break };
            self.remove(oldest);
            evicted += 1;
        }
        self.cost += template.cost();
        self.kept.insert(id, template);
        evicted
    }

    pub(super) fn remove(&mut self, id: u16) -> bool {
        let removed = self.kept.remove(&id);
        self.cost -= removed.as_ref().map_or(0, Template::cost);
        removed.is_some()
    }

    /// Forgets what was heard before that instant. Gives how many.
    pub(super) fn expire(&mut self, before_ns: u64) -> u64 {
        self.retain(|kept| kept.heard_ns >= before_ns)
    }

    /// Withdraws all of a kind.
    pub(super) fn withdraw_all(&mut self, options: bool) {
        self.retain(|kept| kept.options != options);
    }

    fn retain(&mut self, wanted: impl Fn(&Template) -> bool) -> u64 {
        let before = self.kept.len();
        self.kept.retain(|_, kept| wanted(kept));
        self.cost = self.kept.values().map(Template::cost).sum();
        (before - self.kept.len()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(fields: usize, now_ns: u64) -> Result<Template, Malformed> {
        Template::new(256, &vec![(FieldName { enterprise: 9, id: 1 }, 4); fields], false, now_ns)
    }

    #[test]
    fn memory_is_bounded_and_the_oldest_goes_first() {
        let options = SessionOptions { templates: 3, template_fields: 100, ..SessionOptions::default() };
        let mut templates = Templates::default();
        for id in 0..5_u16 {
            templates.keep(300 + id, template(2, u64::from(id)).expect("is one"), &options);
        }
        assert_eq!((templates.len(), templates.find(301).is_none()), (3, true));
        assert_eq!(templates.keep(400, template(48, 9).expect("is one"), &options), 3);
        assert_eq!((templates.len(), templates.cost), (1, 100));
    }

    #[test]
    fn a_record_has_bytes() {
        let empty = [(FieldName { enterprise: 0, id: 1 }, 0)];
        assert!(Template::new(256, &empty, false, 0).is_err());
        assert!(template(MOST_FIELDS + 1, 0).is_err());
    }
}
