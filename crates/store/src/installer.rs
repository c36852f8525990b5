//! The installer: the manifest, and the states of its clients.
//!
//! It is taken, not locked ([`crate::base::Base::take_installer`]): whoever holds the guard is alone in changing what it has, and what engines
//! derive from that. A change is durable first ([`Installer::append`]), then made in the clients' states.

use crate::base::Base;
use crate::error::Error;
use crate::hashed::catalog::Catalog;
use crate::keyspace::catalogue::Catalogue;
use crate::manifest::base_marks::{BaseMarks, MarksEdit, Opening};
use crate::manifest::client::{ManifestClient, ManifestClients};
use crate::manifest::engine_roots::EngineRoots;
use crate::manifest::items::FrameItems;
use crate::manifest::{Manifest, Recovered};
use crate::ordered::slabs::group_table::GroupTable;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// The clients of a store's manifest: the base's own, and each engine's.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Clients {
    pub marks: BaseMarks,
    pub keyspaces: Catalogue,
    pub roots: EngineRoots,
    /// The hashed engine's.
    pub catalog: Catalog,
    /// The ordered engine's.
    pub groups: GroupTable,
}

impl ManifestClients for Clients {
    fn each(&self) -> Vec<&dyn ManifestClient> {
        vec![&self.marks, &self.keyspaces, &self.roots, &self.catalog, &self.groups]
    }

    fn each_mut(&mut self) -> Vec<&mut dyn ManifestClient> {
        vec![&mut self.marks, &mut self.keyspaces, &mut self.roots, &mut self.catalog, &mut self.groups]
    }
}

pub struct Installer {
    pub manifest: Manifest,
    pub clients: Clients,
}

impl Deref for Installer {
    type Target = Clients;

    fn deref(&self) -> &Clients {
        &self.clients
    }
}

impl DerefMut for Installer {
    fn deref_mut(&mut self) -> &mut Clients {
        &mut self.clients
    }
}

impl From<Recovered<Clients>> for Installer {
    fn from(Recovered { manifest, clients }: Recovered<Clients>) -> Installer {
        Installer { manifest, clients }
    }
}

/// The installer, as long as somebody has it. When this is dropped, others may have it, and see the room that there is now.
pub struct InstallerGuard {
    pub base: Arc<Base>,
    /// There until the drop.
    pub installer: Option<Box<Installer>>,
}

impl Deref for InstallerGuard {
    type Target = Installer;

    fn deref(&self) -> &Installer {
        self.installer.as_deref().expect("it is there until the drop")
    }
}

impl DerefMut for InstallerGuard {
    fn deref_mut(&mut self) -> &mut Installer {
        self.installer.as_deref_mut().expect("it is there until the drop")
    }
}

impl Drop for InstallerGuard {
    fn drop(&mut self) {
        self.installer.take().into_iter().for_each(|installer| self.base.give_installer(installer));
    }
}

impl Installer {
    /// Makes edits durable, all of them or none. What they change the caller changes then.
    pub async fn append(&mut self, edits: &FrameItems) -> Result<(), Error> {
        self.manifest.append(&self.clients, edits).await
    }

    /// The same, if there is room in the manifest as it is; whether there was.
    pub async fn append_if_room(&mut self, edits: &FrameItems) -> Result<bool, Error> {
        self.manifest.append_if_room(&self.clients, edits).await
    }

    /// Makes durable that the store was opened once more, and with it all that recovery read and believed.
    /// Stamps from `stamp_base` on are given from now; those up to `stamp_opened` are there.
    pub async fn open(&mut self, stamp_base: u64, stamp_opened: u64) -> Result<(), Error> {
        self.manifest.flush().await?;
        let generation = self.marks.opening.generation + 1;
        let opened = MarksEdit::Open(Opening { generation, stamp_base, stamp_opened });
        let mut edits = FrameItems::default();
        MarksEdit::put(&[opened], &mut edits);
        self.append(&edits).await?;
        self.marks.edit(&opened);
        Ok(())
    }
}
