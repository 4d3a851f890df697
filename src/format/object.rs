//! Objects of Python-Blosc2 that it stores as frames: what such a frame holds is not the data that a reader of the object gets.
//!
//! Python-Blosc2 (4.14) marks an object by a metalayer of the header, and `blosc2.open` decides by these names, in this order:
//!
//! | metalayer | object |
//! | --- | --- |
//! | `proxy-source` | a Proxy, which caches the data of another array |
//! | `b2o` | MessagePack, `{"kind": NAME, "version": 1}`: an expression, a function, an array elsewhere |
//! | `b2embed`, `b2dict`, `b2tree`, `b2remote_store` | the file of a store, which holds other frames |
//! | `listarray`, `vlarray`, `batcharray` | Python objects, serialised |
//! | `LazyArray` | an expression (0) or a function (1), as older versions write it, and 4.14 where it has no kernel |

use super::metalayer::Metalayer;

/// The longest content of a metalayer that is parsed. Python-Blosc2 writes about 30 bytes.
const MAX_CONTENT: usize = 4 << 10;
/// How deep its values may be nested.
const DEPTH: usize = 16;

/// The kind of an object of Python-Blosc2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Object {
    /// A LazyExpr: values are computed from other arrays.
    Expression,
    /// A LazyUDF: a function computes the values.
    Function,
    /// A Proxy: a cache of another array.
    Proxy,
    /// A RemoteArray.
    RemoteArray,
    /// A C2Array.
    C2Array,
    /// An object of a kind that is not known here.
    Other,
    /// An EmbedStore.
    EmbedStore,
    /// A part of a DictStore.
    DictStore,
    /// A part of a TreeStore.
    TreeStore,
    /// A part of a RemoteStore.
    RemoteStore,
    /// A ListArray.
    ListArray,
    /// An ObjectArray.
    ObjectArray,
    /// A BatchArray.
    BatchArray,
}

/// The object that the content of a metalayer stands for.
type Mark = fn(&[u8]) -> Object;

/// Names of metalayers, the first of which decides.
const MARKS: [(&str, Mark); 10] = [
    ("proxy-source", |_| Object::Proxy),
    ("b2o", Object::of_kind),
    ("b2embed", |_| Object::EmbedStore),
    ("b2remote_store", |_| Object::RemoteStore),
    ("b2dict", |_| Object::DictStore),
    ("b2tree", |_| Object::TreeStore),
    ("listarray", |_| Object::ListArray),
    ("vlarray", |_| Object::ObjectArray),
    ("batcharray", |_| Object::BatchArray),
    ("LazyArray", |content| if content == [1] { Object::Function } else { Object::Expression }),
];

impl Object {
    /// Returns the object that the metalayers of a header mark, if they mark one.
    pub fn find<'a>(metalayers: impl Iterator<Item = Metalayer<'a>>) -> Option<Self> {
        let mark = |layer: Metalayer<'a>| {
            let rank = MARKS.iter().position(|(name, _)| layer.name == name.as_bytes())?;
            Some((rank, layer.content))
        };
        let (rank, content) = metalayers.filter_map(mark).min_by_key(|(rank, _)| *rank)?;
        MARKS.get(rank).map(|(_, object)| object(content))
    }

    /// Returns the object of a `b2o` metalayer.
    fn of_kind(mut content: &[u8]) -> Self {
        if content.len() > MAX_CONTENT {
            return Object::Other;
        }
        let value = rmpv::decode::read_value_ref_with_max_depth(&mut content, DEPTH);
        let kind = match &value {
            Ok(rmpv::ValueRef::Map(pairs)) => {
                pairs.iter().find(|(key, _)| text(key) == Some("kind")).and_then(|(_, value)| text(value))
            }
            _ => None,
        };
        match kind {
            Some("lazyexpr") => Object::Expression,
            Some("lazyudf") => Object::Function,
            Some("remote_array") => Object::RemoteArray,
            Some("c2array") => Object::C2Array,
            _ => Object::Other,
        }
    }

    /// The class of Python-Blosc2.
    pub const fn class(self) -> &'static str {
        match self {
            Object::Expression => "LazyExpr",
            Object::Function => "LazyUDF",
            Object::Proxy => "Proxy",
            Object::RemoteArray => "RemoteArray",
            Object::C2Array => "C2Array",
            Object::Other => "object",
            Object::EmbedStore => "EmbedStore",
            Object::DictStore => "DictStore",
            Object::TreeStore => "TreeStore",
            Object::RemoteStore => "RemoteStore",
            Object::ListArray => "ListArray",
            Object::ObjectArray => "ObjectArray",
            Object::BatchArray => "BatchArray",
        }
    }

    /// The object in words, with what its frame holds.
    pub const fn description(self) -> &'static str {
        match self {
            Object::Expression => "an expression (LazyExpr of Python-Blosc2): its values are computed from other arrays",
            Object::Function => "a function (LazyUDF of Python-Blosc2): its values are computed from other arrays",
            Object::Proxy => {
                "a cache of another array (Proxy of Python-Blosc2): it holds what was fetched, and zeros for the rest"
            }
            Object::RemoteArray => {
                "a reference (RemoteArray of Python-Blosc2): its values are elsewhere, or only cached here in part"
            }
            Object::C2Array => "a reference (C2Array of Python-Blosc2): its values are on a server",
            Object::Other => {
                "an object of Python-Blosc2 (metalayer b2o) of a kind that is not known: its values may be elsewhere"
            }
            Object::EmbedStore => "a store (EmbedStore of Python-Blosc2): it holds other frames",
            Object::DictStore => "a part of a store (DictStore of Python-Blosc2): it holds other frames",
            Object::TreeStore => "a part of a store (TreeStore of Python-Blosc2): it holds other frames",
            Object::RemoteStore => "a part of a store (RemoteStore of Python-Blosc2): its arrays are elsewhere",
            Object::ListArray => "an array of lists (ListArray of Python-Blosc2): it holds serialised Python objects",
            Object::ObjectArray => "an array of objects (ObjectArray of Python-Blosc2): it holds serialised Python objects",
            Object::BatchArray => "an array of batches (BatchArray of Python-Blosc2): it holds serialised Python objects",
        }
    }

    /// What gives the values, in Python.
    pub const fn remedy(self) -> &'static str {
        match self {
            Object::Expression | Object::Function => {
                "in Python, blosc2.open(PATH, mode=\"r\", deserialize=\"full\").compute(urlpath=NEW) makes an array of the values"
            }
            Object::Proxy | Object::RemoteArray | Object::C2Array | Object::Other => {
                "in Python, blosc2.asarray(blosc2.open(PATH, mode=\"r\", deserialize=\"full\")[:], urlpath=NEW) makes an array of the values"
            }
            Object::EmbedStore | Object::DictStore | Object::TreeStore | Object::RemoteStore => {
                "in Python, the store opens its arrays, and each saves itself as a frame: store[KEY].save(NEW)"
            }
            Object::ListArray | Object::ObjectArray | Object::BatchArray => {
                "in Python, blosc2.open(PATH, mode=\"r\")[:] reads them"
            }
        }
    }
}

fn text<'a>(value: &'a rmpv::ValueRef<'_>) -> Option<&'a str> {
    if let rmpv::ValueRef::String(text) = value { rmpv::Utf8StringRef::as_str(text) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(layers: &[(&str, &[u8])]) -> Option<Object> {
        Object::find(layers.iter().map(|(name, content)| Metalayer { name: name.as_bytes(), content }))
    }

    #[test]
    fn each_kind_by_its_metalayer() {
        for (name, content, object) in [
            ("b2o", &b"\x82\xa4kind\xa8lazyexpr\xa7version\x01"[..], Object::Expression),
            ("b2o", b"\x82\xa4kind\xa7lazyudf\xa7version\x01", Object::Function),
            ("b2o", b"\x82\xa7version\x01\xa4kind\xacremote_array", Object::RemoteArray),
            ("b2o", b"\x82\xa4kind\xa7c2array\xa7version\x01", Object::C2Array),
            ("b2o", b"\x82\xa4kind\xa5newer\xa7version\x02", Object::Other),
            ("LazyArray", b"\x00", Object::Expression),
            ("LazyArray", b"\x01", Object::Function),
            ("proxy-source", b"\x80", Object::Proxy),
            ("b2embed", b"\x81\xa7version\x01", Object::EmbedStore),
            ("b2dict", b"", Object::DictStore),
            ("b2tree", b"", Object::TreeStore),
            ("b2remote_store", b"", Object::RemoteStore),
            ("listarray", b"", Object::ListArray),
            ("vlarray", b"", Object::ObjectArray),
            ("batcharray", b"", Object::BatchArray),
        ] {
            assert_eq!(found(&[("b2nd", b""), (name, content), ("mine", b"")]), Some(object), "{name}");
        }
        assert_eq!(found(&[("b2nd", b""), ("mine", b""), ("b2", b""), ("proxy", b"")]), None);
    }

    #[test]
    fn of_two_metalayers_the_one_that_the_library_asks_for_first() {
        let lists = [("batcharray", &b""[..]), ("listarray", b"")];
        assert_eq!(found(&lists), Some(Object::ListArray), "a ListArray is stored in batches");
        let store = [("b2tree", &b""[..]), ("b2remote_store", b"")];
        assert_eq!(found(&store), Some(Object::RemoteStore));
        let cache = [("b2o", &b"\x81\xa4kind\xa8lazyexpr"[..]), ("proxy-source", b"")];
        assert_eq!(found(&cache), Some(Object::Proxy));
    }

    #[test]
    fn hostile_contents_are_objects_of_no_known_kind() {
        let long = [&b"\x81\xa4kind\xda\xff\xff"[..], &[b'a'; 1 << 16]].concat();
        for content in
            [&b""[..], b"\xc0", b"\x81", b"\xdf\xff\xff\xff\xff", b"\x81\xa4kind\x91\xa1a", b"\x81\xa4kind\xa2\xff\xfe", &long]
        {
            assert_eq!(found(&[("b2o", content)]), Some(Object::Other));
        }
        assert_eq!(found(&[("b2o", &[0x91; 4096])]), Some(Object::Other));
    }
}
