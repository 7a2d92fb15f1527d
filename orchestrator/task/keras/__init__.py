"""What is mended and watched in Keras."""
