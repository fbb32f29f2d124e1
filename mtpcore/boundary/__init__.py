"""What comes from outside, checked before it is used: values, arrays, sizes and paths."""
