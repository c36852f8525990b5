//! Claims the extents of groups of slots when a store is opened.

use super::group_table::GroupTable;
use tapetum_base::error::Error;
use tapetum_base::media::extents::Extents;
use tapetum_kernels::reference::Run;

/// Claims the extents of all groups of slots. An error if something else has claimed them.
pub fn claim_groups(extents: &mut Extents, groups: &GroupTable) -> Result<(), Error> {
    for group in groups.iter() {
        if !extents.claim_slots(Run { first: group.first, count: group.extents }) {
            return Err(Error::Corrupt(format!(
                "the manifest gives a group of slots at extent {} what the store does not have, or a segment has",
                group.first
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ordered::slabs::group_table::{Group, GroupEdit};
    use crate::ordered::slabs::slot_class::SlotClass;
    use tapetum_base::keyspace::KeyspaceId;
    use tapetum_base::media::extents::ExtentOwner;

    #[test]
    fn a_group_of_slots_takes_its_extents_and_nobody_elses() {
        let mut groups = GroupTable::default();
        for (first, extents) in [(3, 2), (8, 1)] {
            let class = SlotClass::Nodes;
            let group = Group { first, extents, keyspace: KeyspaceId(1), class, version: first.into(), open: false };
            groups.edit(&GroupEdit::Add(group)).unwrap();
        }
        let claim = |taken: Option<u32>, count: u32| {
            let mut extents = Extents::new(count);
            assert!(taken.is_none_or(|extent| extents.claim(ExtentOwner::Slots, extent)));
            claim_groups(&mut extents, &groups).map(|()| extents.free_count()).map_err(|error| error.to_string())
        };
        assert_eq!([claim(None, 10), claim(Some(5), 10)], [Ok(7), Ok(6)]);
        assert!(claim(Some(4), 10).unwrap_err().contains("at extent 3 "));
        assert!(claim(None, 8).unwrap_err().contains("at extent 8 "));
    }
}
