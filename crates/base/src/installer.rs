//! The installer: the manifest, and the states of its clients.
//!
//! It is taken, not locked ([`crate::base::Base::take_installer`]): whoever holds the guard is alone in changing what it has, and what engines
//! derive from that. A change is durable first ([`Installer::append`]), then made in the clients' states.
//!
//! An engine may need many steps to follow a change of its states. A store that fails between these steps loses the installer, so that nobody
//! reads states that contradict the engine ([`Installer::begin_change`]).

use crate::error::Error;
use crate::keyspace::catalogue::Catalogue;
use crate::manifest::base_marks::{BaseMarks, MarksEdit, Opening};
use crate::manifest::client::{ManifestClient, ManifestClients};
use crate::manifest::engine_roots::EngineRoots;
use crate::manifest::items::FrameItems;
use crate::manifest::{Manifest, Recovered};
use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// A state that an engine keeps in the manifest. The default one is that of an empty store.
pub trait EngineClient: ManifestClient + Any + fmt::Debug {
    fn copy(&self) -> Box<dyn EngineClient>;

    fn is_like(&self, other: &dyn EngineClient) -> bool;
}

impl<T: ManifestClient + Any + Clone + PartialEq + fmt::Debug> EngineClient for T {
    fn copy(&self) -> Box<dyn EngineClient> {
        Box::new(self.clone())
    }

    fn is_like(&self, other: &dyn EngineClient) -> bool {
        (other as &dyn Any).downcast_ref::<T>() == Some(self)
    }
}

/// Makes the states that the engines of a store keep in the manifest, one of a type.
pub type EngineClients = fn() -> Vec<Box<dyn EngineClient>>;

/// The clients of a store's manifest: the base's own, and each engine's.
#[derive(Debug)]
pub struct Clients {
    pub marks: BaseMarks,
    pub keyspaces: Catalogue,
    pub roots: EngineRoots,
    of_engines: Vec<Box<dyn EngineClient>>,
}

impl Clients {
    /// Those of an empty store.
    pub fn empty(of_engines: EngineClients) -> Clients {
        let (marks, keyspaces, roots) = Default::default();
        Clients { marks, keyspaces, roots, of_engines: of_engines() }
    }

    /// The state of this type.
    pub fn of<T: EngineClient>(&self) -> &T {
        let mut all = self.of_engines.iter().map(|client| &**client as &dyn Any);
        all.find_map(|client| client.downcast_ref()).expect("each engine names its states when a store is opened")
    }

    /// The state of this type, to change it.
    pub fn of_mut<T: EngineClient>(&mut self) -> &mut T {
        let mut all = self.of_engines.iter_mut().map(|client| &mut **client as &mut dyn Any);
        all.find_map(|client| client.downcast_mut()).expect("each engine names its states when a store is opened")
    }
}

impl Clone for Clients {
    fn clone(&self) -> Clients {
        let (marks, keyspaces, roots) = (self.marks.clone(), self.keyspaces.clone(), self.roots.clone());
        Clients { marks, keyspaces, roots, of_engines: self.of_engines.iter().map(|client| client.copy()).collect() }
    }
}

impl PartialEq for Clients {
    fn eq(&self, other: &Clients) -> bool {
        let own = (&self.marks, &self.keyspaces, &self.roots) == (&other.marks, &other.keyspaces, &other.roots);
        own && self.of_engines.len() == other.of_engines.len()
            && self.of_engines.iter().zip(&other.of_engines).all(|(one, other)| one.is_like(&**other))
    }
}

impl ManifestClients for Clients {
    fn each(&self) -> Vec<&dyn ManifestClient> {
        let own: [&dyn ManifestClient; 3] = [&self.marks, &self.keyspaces, &self.roots];
        let engines = self.of_engines.iter().map(|client| &**client as &dyn ManifestClient);
        own.into_iter().chain(engines).collect()
    }

    fn each_mut(&mut self) -> Vec<&mut dyn ManifestClient> {
        let own: [&mut dyn ManifestClient; 3] = [&mut self.marks, &mut self.keyspaces, &mut self.roots];
        let engines = self.of_engines.iter_mut().map(|client| &mut **client as &mut dyn ManifestClient);
        own.into_iter().chain(engines).collect()
    }
}

pub struct Installer {
    pub manifest: Manifest,
    pub clients: Clients,
    /// A change of the states has begun, and is not yet in all that engines derive from them.
    is_half_made: bool,
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
        Installer { manifest, clients, is_half_made: false }
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

    /// Begins a change that takes many steps. A guard that is dropped before [`Installer::end_change`] does not give the installer back: its task
    /// failed, which poisons the log, or was given up because the log is poisoned.
    pub fn begin_change(&mut self) {
        self.is_half_made = true;
    }

    /// Ends the change: engines follow the states again.
    pub fn end_change(&mut self) {
        self.is_half_made = false;
    }

    pub fn is_half_made(&self) -> bool {
        self.is_half_made
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
