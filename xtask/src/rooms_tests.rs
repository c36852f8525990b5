//! Rooms of a crate, which are the folders and files of its `src`, depend one way: an import cycle is a missing boundary. Engines depend on
//! themselves and on other crates alone.
//!
//! Tests, and what is compiled for them alone, may use anything.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, Macro, UseTree, Visibility};

use crate::workspace;

/// For each room, those that it names, and where it does.
type Imports = BTreeMap<String, BTreeMap<String, String>>;

/// The imports of one crate, gathered module by module.
#[derive(Default)]
struct Gatherer {
    rooms: BTreeSet<String>,
    /// Names that the crate's root takes from its rooms.
    exported: BTreeMap<String, String>,
    /// The path of the module that is read now.
    module: Vec<String>,
    folder: PathBuf,
    imports: Imports,
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    let mut conditions = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    conditions.any(|condition| condition.meta.require_list().is_ok_and(|list| list.tokens.to_string().contains("test")))
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// The paths of a use tree, without renames.
fn leaves(tree: &UseTree, path: &[String], into: &mut Vec<Vec<String>>) {
    let with = |name: &syn::Ident| [path, &[name.to_string()]].concat();
    match tree {
        UseTree::Path(tree) => leaves(&tree.tree, &with(&tree.ident), into),
        UseTree::Group(group) => group.items.iter().for_each(|tree| leaves(tree, path, into)),
        UseTree::Name(name) => into.push(with(&name.ident)),
        UseTree::Rename(rename) => into.push(with(&rename.ident)),
        _ => into.push(path.to_vec()),
    }
}

impl Gatherer {
    fn read(source: &Path) -> Imports {
        let root = ["lib.rs", "main.rs"].map(|name| source.join(name)).into_iter().find(|root| root.exists());
        let root = parse(&root.expect("a crate has a root"));
        let mut gatherer = Gatherer { folder: source.to_owned(), ..Gatherer::default() };
        for item in &root.items {
            match item {
                Item::Mod(module) => drop(gatherer.rooms.insert(module.ident.to_string())),
                Item::Use(item) if matches!(item.vis, Visibility::Public(_)) => {
                    let mut paths = Vec::new();
                    leaves(&item.tree, &[], &mut paths);
                    let named =
                        paths.into_iter().filter_map(|path| Some((path.last()?.clone(), path.first()?.clone())));
                    gatherer.exported.extend(named);
                }
                _ => {}
            }
        }
        root.items.iter().for_each(|item| gatherer.visit_item(item));
        gatherer.imports
    }

    /// Takes a path of the source, if it leads to another room.
    fn note(&mut self, path: &[String]) {
        let Some(own) = self.module.first() else { return };
        let ups = path.iter().take_while(|name| *name == "super").count();
        let base = match path.first().map(String::as_str) {
            Some("crate") => &path[1..],
            // Within the room, unless it leads to the root.
            Some("super") if ups == self.module.len() => &path[ups..],
            _ => return,
        };
        let Some(name) = base.first() else { return };
        let room = if self.rooms.contains(name) { name } else { self.exported.get(name).unwrap_or(name) };
        if room != own && self.rooms.contains(room) {
            let place = format!("{}: {}", self.module.join("::"), path.join("::"));
            self.imports.entry(own.clone()).or_default().insert(room.clone(), place);
        }
    }
}

impl<'ast> Visit<'ast> for Gatherer {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        let name = item.ident.to_string();
        self.module.push(name.clone());
        match &item.content {
            Some((_, items)) => items.iter().for_each(|item| self.visit_item(item)),
            None => {
                let folder = self.folder.join(&name);
                let file = [folder.with_extension("rs"), folder.join("mod.rs")].into_iter().find(|file| file.exists());
                if let Some(file) = file {
                    let above = std::mem::replace(&mut self.folder, folder);
                    parse(&file).items.iter().for_each(|item| self.visit_item(item));
                    self.folder = above;
                }
            }
        }
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let mut paths = Vec::new();
        leaves(&item.tree, &[], &mut paths);
        paths.iter().for_each(|path| self.note(path));
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.note(&names);
        visit::visit_path(self, path);
    }

    /// Tokens of a macro are no paths yet.
    fn visit_macro(&mut self, item: &'ast Macro) {
        let text = item.tokens.to_string().replace(" :: ", "::");
        for path in text.split("crate::").skip(1) {
            let name = path.split(|letter: char| letter != '_' && !letter.is_alphanumeric()).next().unwrap_or_default();
            self.note(&["crate".to_owned(), name.to_owned()]);
        }
    }
}

fn parse(file: &Path) -> syn::File {
    syn::parse_file(&fs::read_to_string(file).unwrap()).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// The imports among rooms of which each names another one of them.
fn cycle(mut imports: Imports) -> Vec<String> {
    loop {
        let rooms: BTreeSet<String> = imports.keys().cloned().collect();
        let mut is_changed = false;
        imports.retain(|_, named| {
            named.retain(|room, _| rooms.contains(room));
            is_changed |= named.is_empty();
            !named.is_empty()
        });
        if !is_changed {
            return imports.into_values().flat_map(BTreeMap::into_values).collect();
        }
    }
}

fn sources() -> Vec<PathBuf> {
    let root = workspace::root();
    let crates = fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path().join("src"));
    crates.chain(["xtask", "python"].map(|name| root.join(name).join("src"))).filter(|source| source.is_dir()).collect()
}

#[test]
fn no_room_of_a_crate_is_in_an_import_cycle() {
    let sources = sources();
    assert!(sources.len() > 8, "the crates are somewhere else: {sources:?}");
    for source in sources {
        assert_eq!(cycle(Gatherer::read(&source)), Vec::<String>::new(), "{}", source.display());
    }
}

#[test]
fn an_engine_names_no_room_beside_its_own() {
    let imports = Gatherer::read(&workspace::root().join("crates/store/src"));
    assert!(imports.len() > 4, "{imports:?}");
    for engine in ["hashed", "ordered"] {
        assert_eq!(imports.get(engine), None, "what {engine} needs of others belongs to the base, or to `Engine`");
    }
}

#[test]
fn a_cycle_is_found_and_what_only_leads_to_it_is_not_named() {
    let imports = |edges: &[(&str, &str)]| {
        let mut imports = Imports::new();
        for (from, to) in edges {
            imports.entry(from.to_string()).or_default().insert(to.to_string(), format!("{from} {to}"));
        }
        imports
    };
    assert_eq!(cycle(imports(&[("a", "b"), ("b", "c"), ("a", "c")])), Vec::<String>::new());
    assert_eq!(cycle(imports(&[("b", "c"), ("c", "b"), ("c", "d")])), ["b c", "c b"]);
}
