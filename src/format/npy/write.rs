//! The texts that name a type: `descr` of a .npy header, and `str(dtype)` of a b2nd metalayer.

use super::dtype::{Field, ItemKind, ItemType, Struct};
use super::literal::{write_shape, write_str};

impl ItemType {
    /// What `np.save` of NumPy 2 writes as `descr`, as Python's literal. Gaps between fields are fields without a name, of type
    /// `|V<n>`. NumPy has no `descr` for fields that overlap or are not in order: such items are named by their size, `|V<n>`.
    pub fn descr(&self) -> String {
        let mut out = String::new();
        if write_descr(&mut out, self).is_none() {
            out.clear();
            write_str(&mut out, &void(self.size()));
        }
        out
    }

    /// What python-blosc2 writes in a b2nd metalayer: `dtype.str`, of structures `str(dtype)`. [`ItemType::parse`] takes it back.
    pub fn b2nd_text(&self) -> String {
        if let ItemKind::Scalar(scalar) = &self.0 {
            return scalar.to_string();
        }
        let mut out = String::new();
        write_text(&mut out, self);
        out
    }
}

fn void(size: u64) -> String {
    format!("|V{size}")
}

/// `None` where NumPy has no descr.
fn write_descr(out: &mut String, item: &ItemType) -> Option<()> {
    match &item.0 {
        ItemKind::Scalar(scalar) => write_str(out, &scalar.to_string()),
        ItemKind::Sub { base, shape, .. } => {
            out.push('(');
            write_descr(out, base)?;
            out.push_str(", ");
            write_shape(out, shape);
            out.push(')');
        }
        ItemKind::Struct(Struct { fields, size, .. }) => {
            let (mut list, mut offset) = (List::new(out, '['), 0u64);
            for field in fields {
                list.gap(field.offset.checked_sub(offset)?);
                write_field(list.next(), field, write_descr)?;
                offset = field.end();
            }
            list.gap(size.checked_sub(offset)?);
            list.close(']');
        }
    }
    Some(())
}

/// A field of a list, its type written by `write`.
fn write_field(out: &mut String, field: &Field, write: impl Fn(&mut String, &ItemType) -> Option<()>) -> Option<()> {
    out.push('(');
    match &field.title {
        None => write_str(out, &field.name),
        Some(title) => {
            out.push('(');
            write_str(out, title);
            out.push_str(", ");
            write_str(out, &field.name);
            out.push(')');
        }
    }
    out.push_str(", ");
    match &field.item.0 {
        ItemKind::Sub { base, shape, .. } => {
            write(out, base)?;
            out.push_str(", ");
            write_shape(out, shape);
        }
        _ => write(out, &field.item)?,
    }
    out.push(')');
    Some(())
}

/// As NumPy writes a type among others.
fn write_text(out: &mut String, item: &ItemType) {
    match &item.0 {
        ItemKind::Scalar(scalar) => write_str(out, &scalar.short()),
        ItemKind::Sub { base, shape, .. } => {
            out.push('(');
            write_text(out, base);
            out.push_str(", ");
            write_shape(out, shape);
            out.push(')');
        }
        ItemKind::Struct(fields) if fields.is_packed() => {
            let mut list = List::new(out, '[');
            for field in &fields.fields {
                let written = write_field(list.next(), field, |out, item| {
                    write_text(out, item);
                    Some(())
                });
                debug_assert!(written.is_some());
            }
            list.close(']');
        }
        ItemKind::Struct(fields) => write_dict(out, fields),
    }
}

fn write_dict(out: &mut String, Struct { fields, size, .. }: &Struct) {
    let mut lists = |before: &str, write: &dyn Fn(&mut String, &Field)| {
        out.push_str(before);
        let mut list = List::new(out, '[');
        for field in fields {
            write(list.next(), field);
        }
        list.close(']');
    };
    lists("{'names': ", &|out, field| write_str(out, &field.name));
    lists(", 'formats': ", &|out, field| write_text(out, &field.item));
    lists(", 'offsets': ", &|out, field| out.push_str(&field.offset.to_string()));
    if fields.iter().any(|field| field.title.is_some()) {
        lists(", 'titles': ", &|out, field| match &field.title {
            Some(title) => write_str(out, title),
            None => out.push_str("None"),
        });
    }
    out.push_str(&format!(", 'itemsize': {size}}}"));
}

impl Struct {
    /// Whether the fields follow each other without a gap, in order, and nothing is behind the last one.
    fn is_packed(&self) -> bool {
        let mut end = 0;
        let in_order = self.fields.iter().all(|field| field.offset == std::mem::replace(&mut end, field.end()));
        in_order && end == self.size
    }
}

/// Items with commas between them.
struct List<'a> {
    out: &'a mut String,
    is_empty: bool,
}

impl<'a> List<'a> {
    fn new(out: &'a mut String, open: char) -> Self {
        out.push(open);
        List { out, is_empty: true }
    }

    /// Where the next item is to be written.
    fn next(&mut self) -> &mut String {
        if !self.is_empty {
            self.out.push_str(", ");
        }
        self.is_empty = false;
        self.out
    }

    /// Bytes that belong to no field.
    fn gap(&mut self, len: u64) {
        if len > 0 {
            let text = void(len);
            let out = self.next();
            out.push_str("('', ");
            write_str(out, &text);
            out.push(')');
        }
    }

    fn close(self, bracket: char) {
        self.out.push(bracket);
    }
}
