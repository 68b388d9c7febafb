"""JSON Schema from outside, made safe."""
