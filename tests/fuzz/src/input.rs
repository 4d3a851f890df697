//! Decisions taken from bytes: once they have run out, all are 0.

pub struct Input<'a>(pub &'a [u8]);

impl Input<'_> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }
    pub fn below(&mut self, bound: usize) -> usize {
        let value = if bound > 256 { usize::from(self.byte()) << 8 | usize::from(self.byte()) } else { usize::from(self.byte()) };
        value % bound.max(1)
    }
    pub fn pick<'b, T>(&mut self, from: &'b [T]) -> &'b T {
        &from[self.below(from.len())]
    }
    pub fn bytes(&mut self, most: usize) -> Vec<u8> {
        let (head, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        head.to_vec()
    }
}
