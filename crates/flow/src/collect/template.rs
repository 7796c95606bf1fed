//! Templates: the exporter's description of the fields in its records.
//!
//! Invariant: every record of a stored template has at least one byte. The memory of a session's templates is bounded.

use super::meaning::{FieldMeaning, field_meaning};
use super::memory::{block_bytes, map_memory_bytes};
use super::{MalformedMessage, SessionOptions};
use crate::export::section::{REVERSE_ENTERPRISE, VARIABLE_LENGTH};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of fields of a template that are accepted.
const MAX_FIELDS: usize = 4096;

/// The name of a field in a template: its enterprise and its element number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct FieldName {
    /// 0 is IANA, whose elements below 128 are also the field types of NetFlow v9.
    pub(super) enterprise: u32,
    pub(super) id: u16,
}

/// A field specifier (RFC 7011 section 3.2): which field, and how many bytes it takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct FieldSpecifier {
    pub(super) name: FieldName,
    pub(super) length: u16,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct TemplateField {
    pub(super) length: u16,
    pub(super) reverse: bool,
    pub(super) meaning: FieldMeaning,
}

#[derive(Clone, Debug)]
pub(super) struct ReceivedTemplate {
    /// Fields of the record without those of length zero: RFC 7011 does not forbid them, and they carry nothing.
    pub(super) fields: Box<[TemplateField]>,
    /// True if its records are about the exporter instead of flows.
    pub(super) options: bool,
    /// Minimum number of bytes of a record.
    pub(super) least: usize,
    /// True if all records have exactly that many bytes.
    pub(super) is_fixed: bool,
    heard_ns: u64,
    /// Position of the template in the order of reception.
    turn: u64,
}

impl ReceivedTemplate {
    /// Compiles a template from `fields`, in order. The scopes of an options template of NetFlow v9 have numbers of
    /// their own; the caller names them [`FieldName::NONE`], so they are skipped.
    pub(super) fn new(
        id: u16,
        fields: &[FieldSpecifier],
        options: bool,
        now_ns: u64,
    ) -> Result<Self, MalformedMessage> {
        if fields.len() > MAX_FIELDS {
            return Err(MalformedMessage::Template { id, why: "has more than 4096 fields" });
        }
        // A field of length zero is left out here and not skipped later: thousands of them add no byte to the sender's
        // records, but would cost time in every record.
        let filled = fields.iter().filter(|field| field.length > 0);
        let compiled = filled.map(|field| TemplateField {
            length: field.length,
            reverse: field.name.enterprise == REVERSE_ENTERPRISE,
            meaning: field_meaning(field.name),
        });
        let compiled: Box<[TemplateField]> = compiled.collect();
        let least = compiled.iter().map(|field| field.least_bytes()).sum();
        // Records without a byte would never use up their set.
        if least == 0 {
            return Err(MalformedMessage::Template { id, why: "describes records of zero bytes" });
        }
        let is_fixed = compiled.iter().all(|field| field.length != VARIABLE_LENGTH);
        Ok(Self { fields: compiled, options, least, is_fixed, heard_ns: now_ns, turn: 0 })
    }

    const fn field_cost(&self) -> usize {
        self.fields.len() + 4
    }

    const fn block_memory(&self) -> usize {
        block_bytes(self.fields.len() * size_of::<TemplateField>())
    }
}

impl TemplateField {
    /// Minimum number of bytes of a value.
    const fn least_bytes(self) -> usize {
        if self.length == VARIABLE_LENGTH { 1 } else { self.length as usize }
    }
}

/// Returns the names of the fields that have no column, each once.
pub(super) fn fields_without_column(fields: &[FieldSpecifier]) -> BTreeSet<FieldName> {
    let names = fields.iter().filter(|field| field.length > 0).map(|field| field.name);
    names.filter(|name| matches!(field_meaning(*name), FieldMeaning::Other(_))).collect()
}

impl FieldName {
    /// Name of a scope of NetFlow v9.
    pub(super) const NONE: Self = Self { enterprise: 0, id: 0 };
}

/// Templates of a session. Storing and removing one takes time that grows only with the logarithm of their number.
#[derive(Clone, Debug, Default)]
pub(super) struct SessionTemplates {
    kept: BTreeMap<u16, ReceivedTemplate>,
    /// The same templates in the order of reception; templates of options are separate.
    order: BTreeMap<(bool, u64), u16>,
    heard: u64,
    cost: usize,
    blocks: usize,
}

impl SessionTemplates {
    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    pub(super) fn find_template(&self, id: u16) -> Option<&ReceivedTemplate> {
        self.kept.get(&id)
    }

    /// Returns the memory of all templates, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.blocks
            + map_memory_bytes::<u16, ReceivedTemplate>(self.kept.len())
            + map_memory_bytes::<(bool, u64), u16>(self.order.len())
    }

    /// Stores a template in place of one with the same number. Returns how many other templates were
    /// dropped to make room.
    pub(super) fn store_template(
        &mut self,
        id: u16,
        template: ReceivedTemplate,
        options: &SessionOptions,
    ) -> u64 {
        // The old copy is removed before room is made: a repeated template must not displace another one.
        self.remove_template(id);
        let mut given_up = 0;
        while (self.kept.len() >= options.templates
            || self.cost + template.field_cost() > options.template_fields)
            && self.drop_oldest_template()
        {
            given_up += 1;
        }
        self.heard += 1;
        self.cost += template.field_cost();
        self.blocks += template.block_memory();
        self.order.insert((template.options, self.heard), id);
        self.kept.insert(id, ReceivedTemplate { turn: self.heard, ..template });
        given_up
    }

    /// Drops the template that was received longest ago. Returns false if there is none.
    pub(super) fn drop_oldest_template(&mut self) -> bool {
        let oldest = [false, true].into_iter().filter_map(|options| self.oldest_template(options));
        let oldest = oldest.min_by_key(|oldest| oldest.turn);
        oldest.is_some_and(|oldest| self.remove_template(oldest.id))
    }

    pub(super) fn remove_template(&mut self, id: u16) -> bool {
        let Some(removed) = self.kept.remove(&id) else { return false };
        self.order.remove(&(removed.options, removed.turn));
        self.cost -= removed.field_cost();
        self.blocks -= removed.block_memory();
        true
    }

    /// Drops the templates that were received before `before_ns`. Returns how many there were.
    pub(super) fn expire_templates(&mut self, before_ns: u64) -> u64 {
        let mut expired = 0;
        for options in [false, true] {
            // The order is that of reception, so the first template that is new enough ends the search.
            while let Some(TemplateTurn { id, .. }) = self.oldest_template(options)
                && self.kept.get(&id).is_some_and(|kept| kept.heard_ns < before_ns)
                && self.remove_template(id)
            {
                expired += 1;
            }
        }
        expired
    }

    /// Removes all templates of one kind: those of options, or those of flows.
    pub(super) fn withdraw_all(&mut self, options: bool) {
        while let Some(TemplateTurn { id, .. }) = self.oldest_template(options)
            && self.remove_template(id)
        {}
    }

    /// Returns the template of one kind (options or flows) that was received longest ago.
    fn oldest_template(&self, options: bool) -> Option<TemplateTurn> {
        let first = self.order.range((options, 0)..=(options, u64::MAX)).next();
        first.map(|((_, turn), id)| TemplateTurn { turn: *turn, id: *id })
    }
}

/// A template and its place in the order of reception.
struct TemplateTurn {
    turn: u64,
    id: u16,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(fields: usize, now_ns: u64) -> Result<ReceivedTemplate, MalformedMessage> {
        let field = FieldSpecifier { name: FieldName { enterprise: 9, id: 1 }, length: 4 };
        ReceivedTemplate::new(256, &vec![field; fields], false, now_ns)
    }

    #[test]
    fn memory_is_bounded_and_the_oldest_goes_first() {
        let options = SessionOptions { templates: 3, template_fields: 100, ..SessionOptions::default() };
        let mut templates = SessionTemplates::default();
        for id in 0..5_u16 {
            templates.store_template(300 + id, template(2, u64::from(id)).expect("is one"), &options);
        }
        assert_eq!((templates.len(), templates.find_template(301).is_none()), (3, true));
        assert_eq!(templates.store_template(400, template(96, 9).expect("is one"), &options), 3);
        assert_eq!((templates.len(), templates.cost), (1, 100));
    }

    #[test]
    fn templates_expire_and_are_withdrawn_by_kind() {
        let mut templates = SessionTemplates::default();
        for id in 256..266 {
            templates.store_template(
                id,
                template(2, u64::from(id)).expect("is one"),
                &SessionOptions::default(),
            );
        }
        templates.store_template(256, template(2, 300).expect("is one"), &SessionOptions::default());
        assert_eq!((templates.expire_templates(260), templates.len()), (3, 7));
        templates.withdraw_all(true);
        assert_eq!(templates.len(), 7);
        templates.withdraw_all(false);
        assert_eq!((templates.len(), templates.cost, templates.memory_bytes()), (0, 0, 0));
    }

    #[test]
    fn fields_without_a_byte_are_not_walked() {
        let name = FieldName { enterprise: 0, id: 1 };
        let mut fields = vec![FieldSpecifier { name, length: 0 }; 4000];
        fields.push(FieldSpecifier { name, length: 1 });
        let template = ReceivedTemplate::new(256, &fields, false, 0).expect("is one");
        assert_eq!((template.fields.len(), template.least), (1, 1));
    }

    #[test]
    fn a_record_has_bytes() {
        let empty = [FieldSpecifier { name: FieldName { enterprise: 0, id: 1 }, length: 0 }];
        assert!(ReceivedTemplate::new(256, &empty, false, 0).is_err());
        assert!(template(MAX_FIELDS + 1, 0).is_err());
    }
}
