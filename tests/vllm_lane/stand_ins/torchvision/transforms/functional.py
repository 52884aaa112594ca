pil_to_tensor = None
