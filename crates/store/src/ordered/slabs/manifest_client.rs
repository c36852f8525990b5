//! The table of groups as a client of the manifest, and the writers of its changes.

use super::group_table::{GroupEdit, GroupTable};
use super::growth::GroupLog;
use tapetum_base::base::Base;
use tapetum_base::error::Error;
use tapetum_base::installer::Installer;
use tapetum_base::manifest::client::{ManifestClient, Misfit, pieces};
use tapetum_base::manifest::items::{ClientId, FrameItems};
use tapetum_base::media::io::Io;

impl ManifestClient for GroupTable {
    fn id(&self) -> ClientId {
        ClientId::ORDERED
    }

    fn snapshot(&self) -> Box<dyn Iterator<Item = Vec<u8>> + Send + '_> {
        pieces(self.snapshot_edits(), |edits, writer| edits.iter().for_each(|edit| edit.encode(writer)))
    }

    fn snapshot_bytes_max(&self) -> u64 {
        GroupTable::snapshot_bytes_max(self)
    }

    fn apply(&mut self, edit: &[u8]) -> Result<(), Misfit> {
        GroupTable::apply(self, edit).map_err(Misfit)
    }
}

impl GroupEdit {
    /// Adds edits to a frame as an item.
    pub fn put(edits: &[GroupEdit], items: &mut FrameItems) {
        items.put(ClientId::ORDERED, |writer| edits.iter().for_each(|edit| edit.encode(writer)));
    }
}

async fn append(installer: &mut Installer, edits: &[GroupEdit]) -> Result<(), Error> {
    let mut items = FrameItems::default();
    GroupEdit::put(edits, &mut items);
    installer.append(&items).await?;
    edits.iter().try_for_each(|edit| installer.of_mut::<GroupTable>().edit(edit)).map_err(|what| Misfit(what).into())
}

/// The manifest of an open store, for a thread that changes groups: it has the installer.
pub struct GroupInstaller<'a> {
    pub base: &'a Base,
    pub io: &'a Io,
    pub installer: &'a mut Installer,
}

impl GroupLog for GroupInstaller<'_> {
    fn version_next(&self) -> u64 {
        self.installer.of::<GroupTable>().version_next()
    }

    async fn flush(&mut self) -> Result<(), Error> {
        self.base.log.flush_elsewhere(self.io).await
    }

    async fn append(&mut self, edits: Vec<GroupEdit>) -> Result<(), Error> {
        append(self.installer, &edits).await
    }
}

/// The manifest of a store during its opening, when nobody else has it.
pub struct OpeningGroups<'a> {
    pub io: &'a Io,
    pub installer: &'a mut Installer,
}

impl GroupLog for OpeningGroups<'_> {
    fn version_next(&self) -> u64 {
        self.installer.of::<GroupTable>().version_next()
    }

    async fn flush(&mut self) -> Result<(), Error> {
        self.io.flush().await
    }

    async fn append(&mut self, edits: Vec<GroupEdit>) -> Result<(), Error> {
        append(self.installer, &edits).await
    }
}

#[cfg(test)]
mod tests {
    use super::super::group_table::Group;
    use super::super::slot_class::SlotClass;
    use super::*;
    use tapetum_base::keyspace::KeyspaceId;

    #[test]
    fn a_table_is_what_its_pieces_say_and_no_longer_than_is_counted_with() {
        let mut table = GroupTable::default();
        for number in 0..3000 {
            let class = if number % 2 == 0 { SlotClass::Nodes } else { SlotClass::Large };
            let keyspace = KeyspaceId(number as u16 % 7);
            let group =
                Group { first: number * 300, extents: 1 + number % 300, keyspace, class, version: 9, open: false };
            GroupTable::edit(&mut table, &GroupEdit::Add(group)).unwrap();
            GroupTable::edit(&mut table, &GroupEdit::Open(vec![number * 300])).unwrap();
        }
        let all: Vec<_> = ManifestClient::snapshot(&table).collect();
        assert!(all.len() > 1);
        let bytes: usize = all.iter().map(Vec::len).sum();
        assert!(bytes as u64 <= ManifestClient::snapshot_bytes_max(&table));
        let mut loaded = GroupTable::default();
        all.iter().for_each(|piece| loaded.load(piece).unwrap());
        assert_eq!(loaded, table);
        assert!(loaded.load(&all[1]).unwrap_err().0.contains("another group has"));
        let mut items = FrameItems::default();
        GroupEdit::put(&[GroupEdit::Close(vec![300]), GroupEdit::Remove(vec![0])], &mut items);
        let parsed = FrameItems::parse(items.payload()).unwrap();
        assert_eq!(parsed[0].0, ManifestClient::id(&table));
        ManifestClient::apply(&mut table, parsed[0].1).unwrap();
        assert!(table.get(0).is_none() && !table.get(300).unwrap().open);
    }
}
