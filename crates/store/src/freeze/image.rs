//! What a backup needs of a freeze beside its keyspaces: the manifest's state, the log, and the superblock, of the same moment.
//!
//! With the segments, large values and nodes that the freeze holds, they are what a crash at that moment would have left, if everything written by then
//! was durable. So whoever opens a copy recovers it as after any crash.

use crate::hashed::catalog::Catalog;
use crate::ordered::slabs::group_table::GroupTable;
use tapetum_base::base::Base;
use tapetum_base::installer::{Clients, Installer};
use tapetum_base::log::{LogCut, LogZone};
use tapetum_base::manifest::engine_roots::EngineRoots;
use tapetum_base::media::io::lock;
use tapetum_base::media::superblock::Superblock;

/// See the [module](self).
pub struct StoreImage {
    pub superblock: Superblock,
    /// Without what names flash that the freeze does not hold: checkpoints, segments without a valid record, and where slots may be written.
    pub clients: Clients,
    pub log: Vec<LogZone>,
}

/// Takes an image while the installer is held, or none.
pub type TakeImage = fn(&Base, &Installer, LogCut) -> Option<StoreImage>;

/// Readers of a freeze need none.
pub fn no_image(_: &Base, _: &Installer, _: LogCut) -> Option<StoreImage> {
    None
}

pub fn store_image(base: &Base, installer: &Installer, cut: LogCut) -> Option<StoreImage> {
    let mut clients = installer.clients.clone();
    clients.roots = EngineRoots::default();
    let catalog = clients.of_mut::<Catalog>();
    catalog.checkpoint = None;
    catalog.segments.retain(|_, state| state.valid_entries > 0);
    // Records that die later are alive at the moment.
    catalog.segments.values_mut().for_each(|state| state.valid = state.valid.to_own());
    let groups = clients.of_mut::<GroupTable>();
    *groups = groups.at_rest();
    Some(StoreImage { superblock: *lock(&base.superblock), clients, log: base.log.zones(cut) })
}
